//! Tables: each row is one line and has as many cells as the head.

use super::nothing_is_wrong;
use super::pages;

/// Lines that break a table.
fn broken(text: &str) -> Vec<usize> {
    let (mut wrong, mut head) = (Vec::new(), None);
    for (number, line) in pages::split(text).0 {
        let row = line.trim();
        if !row.starts_with('|') {
            head = None;
            continue;
        }
        let bars = row.replace(r"\|", "").matches('|').count();
        if !row.ends_with('|') || *head.get_or_insert(bars) != bars {
            wrong.push(number);
        }
    }
    wrong
}

#[test]
fn each_row_of_a_table_is_a_line() {
    let mut all = Vec::new();
    for page in pages::all() {
        let found = broken(&page.text).into_iter();
        all.extend(found.map(|line| format!("{}:{line}: this row breaks its table", page.path)));
    }
    nothing_is_wrong(&all);
}

#[test]
fn a_table_row_over_two_lines_is_reported() {
    assert_eq!(broken("| a | b |\n|---|---|\n| c | `d \\| e` |\n\n| f |\n|---|\n"), [0_usize; 0]);
    assert_eq!(broken("| a | b |\n|---|---|\n| c | d\ne |\n"), [3]);
    assert_eq!(broken("| a | b |\n|---|---|\n| c |\n"), [3]);
}
