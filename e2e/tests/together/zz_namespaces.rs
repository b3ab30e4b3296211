//! The end of the other tests' namespaces. It has to be the last by its name: then the other tests do not wait for the
//! deletion of theirs, and a thread that would wait runs the next test.

use anyhow::Result;
use barevirt_e2e::namespace;

#[test]
fn each_namespace_of_a_test_is_deleted_with_everything_in_it() -> Result<()> {
    namespace::wait_all_gone()
}
