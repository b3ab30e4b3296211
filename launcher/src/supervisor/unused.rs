//! A launcher stays small beside its QEMU. Its start has used most of the program, and each thing that it is asked for uses a
//! little more; what was used once stays in memory until something takes it out.

use std::io;
use std::time::Duration;

use tokio::time::sleep;

use crate::process::AsInFile;

/// How often. What is used all the time costs some thirty page faults each time: less than a thousandth of a processor.
const PAUSE: Duration = Duration::from_secs(1);

/// Takes what of the program is not in use out of memory, time and again. Ends where the kernel refuses.
pub(super) async fn stay_small() {
    let error = unmap_unused().await;
    tracing::debug!(%error, "what of the program is not in use stays in memory");
}

async fn unmap_unused() -> io::Error {
    let pages = match AsInFile::find() {
        Ok(pages) => pages,
        Err(error) => return error,
    };
    loop {
        sleep(PAUSE).await;
        if let Err(error) = pages.unmap() {
            return error;
        }
    }
}
