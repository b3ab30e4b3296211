//! The commands of the docs, on the test cluster.

use barevirt_e2e::in_namespace;
use barevirt_e2e::pages::{self, Block, Reader};
use std::sync::Mutex;
use std::thread;

/// How many pages are tried at once: most of the time their guests boot.
const AT_ONCE: usize = 3;

#[test]
fn each_command_that_the_docs_say_is_run_succeeds() {
    let pages = Mutex::new(pages::with_blocks().unwrap().into_iter().enumerate());
    let next = || pages.lock().unwrap().next();
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((number, (page, blocks))) = next() {
                    let failures = failures(number, page, blocks);
                    wrong.lock().unwrap().extend(failures);
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n\n"));
}

/// What fails of a page's blocks. Each is tried, whatever became of those before.
fn failures(number: usize, page: String, blocks: Vec<Block>) -> Vec<String> {
    in_namespace(&format!("docs-{number}"), move |namespace| {
        let reader = Reader::new(namespace)?;
        let mut failures = Vec::new();
        for block in &blocks {
            let (line, said) = match reader.run(block) {
                Ok(None) => continue,
                Ok(Some(failure)) => failure,
                Err(error) => (block.line, format!("{error:#}")),
            };
            failures.push(format!("{page}:{line}: {}", said.trim()));
        }
        Ok(failures)
    })
}
