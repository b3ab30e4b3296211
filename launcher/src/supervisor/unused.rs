//! Keeps a launcher small beside its QEMU. Its start has used most of the program, and each request uses a
//! little more; pages that were used once stay in memory until they are unmapped.

use std::io;
use std::time::Duration;

use tokio::time::sleep;

use crate::process::AsInFile;

/// Interval. Frequently used pages cost some thirty page faults each time: less than a thousandth of a CPU.
const PAUSE: Duration = Duration::from_secs(1);

/// Unmaps unused pages of the program again and again. Ends if the kernel refuses.
pub(super) async fn stay_small() {
    let error = unmap_unused().await;
    tracing::debug!(%error, "unused parts of the program stay in memory");
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
