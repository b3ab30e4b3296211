//! The commands of the docs, on the test cluster.

use barevirt_e2e::in_namespace;
use barevirt_e2e::pages::{self, Reader};

#[test]
fn each_command_that_the_docs_say_is_run_succeeds() {
    let mut wrong = Vec::new();
    for (page, blocks) in pages::with_blocks().unwrap() {
        wrong.extend(in_namespace("docs", move |namespace| {
            let reader = Reader::new(namespace)?;
            let mut wrong = Vec::new();
            for block in &blocks {
                if let Some((line, said)) = reader.run(block)? {
                    wrong.push(format!("{page}:{line}: {}", said.trim()));
                }
            }
            Ok(wrong)
        }));
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n\n"));
}
