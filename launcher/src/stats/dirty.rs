//! Measures how much of its memory a guest writes per second, by sampling pages like QEMU's
//! `calc-dirty-rate`.
//!
//! QEMU's command is not used, because it also reads pages that the guest has never touched, and reading
//! allocates pages in a memfd: each measurement would let the guest grow by 2 MiB per GiB, up to its full
//! size. This module asks the kernel which pages exist and reads only those. QEMU is not involved, and the
//! guest is not slowed down.
//!
//! ```text
//!  one page of each section ─► hash ── one second ──► hash again ─► changed share × memory
//! ```

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use tokio::time::{Instant, sleep};

/// The unit of comparison; memory in larger pages is compared in this unit, too.
const PAGE: u64 = PAGE_BYTES as u64;
const PAGE_BYTES: usize = 4096;
/// Samples for each GiB, as in QEMU.
const FOR_A_GIB: u64 = 512;
/// Fewest and most samples of a guest: more give little more precision, and the launcher has other work.
const PAGES: std::ops::RangeInclusive<u64> = 512..=4096;
/// Samples between two yields to other tasks.
const AT_A_TIME: usize = 128;
/// Time between two snapshots, as in KubeVirt.
const PERIOD: Duration = Duration::from_secs(1);
/// QEMU's name for its memory files.
const MEMORY: &str = "/memfd:memory-backend-memfd";

/// Bytes that the guest of this QEMU writes per second; `None` if its memory cannot be read. Takes
/// [`PERIOD`].
pub(super) async fn rate(pid: u32) -> Option<u64> {
    let memory = memory(Path::new(&format!("/proc/{pid}/fd")));
    let size: u64 = memory.iter().map(|(_, size)| size).sum();
    let key = RandomState::new();
    let pages =
        sample(&memory.iter().map(|(_, size)| *size).collect::<Vec<_>>(), |number| key.hash_one(number));
    let begun = Instant::now();
    let first = picture(&memory, &pages, &key).await?;
    sleep(PERIOD.saturating_sub(begun.elapsed())).await;
    // The time between its two reads is the same for each page, because both snapshots are taken in the same
    // order.
    let took = begun.elapsed();
    let second = picture(&memory, &pages, &key).await?;
    let changed = first.iter().zip(&second).filter(|(first, second)| first != second).count();
    per_second(size, changed, pages.len(), took)
}

/// Memory files of a guest among these descriptors, and their sizes.
fn memory(descriptors: &Path) -> Vec<(File, u64)> {
    let all = fs::read_dir(descriptors).into_iter().flatten().flatten();
    let ours = all.filter(|one| {
        fs::read_link(one.path()).is_ok_and(|target| target.to_string_lossy().starts_with(MEMORY))
    });
    // The file is reopened, so that it has its own position. QEMU is not expected to have the same memory
    // behind two descriptors.
    ours.filter_map(|one| {
        let file = File::open(one.path()).ok()?;
        let size = file.metadata().ok()?.len();
        Some((file, size))
    })
    .collect()
}

/// The sampled pages: file and offset. One page from each of the equal stretches of the memory.
fn sample(sizes: &[u64], random: impl Fn(u64) -> u64) -> Vec<(usize, u64)> {
    let pages: u64 = sizes.iter().map(|size| size / PAGE).sum();
    let wanted = (pages * PAGE / (1 << 30) * FOR_A_GIB).clamp(*PAGES.start(), *PAGES.end()).min(pages);
    let place = |number: u64| {
        let (from, to) = (pages * number / wanted, pages * (number + 1) / wanted);
        let mut page = from + random(number) % (to - from).max(1);
        for (file, size) in sizes.iter().enumerate() {
            if page < size / PAGE {
                return Some((file, page * PAGE));
            }
            page -= size / PAGE;
        }
        None
    };
    (0..wanted).filter_map(place).collect()
}

/// A hash of each page; `None` for a page that does not exist.
async fn picture(
    memory: &[(File, u64)],
    pages: &[(usize, u64)],
    key: &RandomState,
) -> Option<Vec<Option<u64>>> {
    let mut seen = Vec::with_capacity(pages.len());
    let mut bytes = [0; PAGE_BYTES];
    for some in pages.chunks(AT_A_TIME) {
        for (file, offset) in some {
            let (file, _) = memory.get(*file)?;
            let there = is_there(file, *offset).ok()?;
            if there {
                file.read_exact_at(&mut bytes, *offset).ok()?;
            }
            seen.push(there.then(|| key.hash_one(bytes)));
        }
        tokio::task::yield_now().await;
    }
    Some(seen)
}

fn is_there(file: &File, offset: u64) -> nix::Result<bool> {
    let offset = i64::try_from(offset).map_err(|_| Errno::EOVERFLOW)?;
    match lseek(file, offset, Whence::SeekData) {
        Ok(data) => Ok(data == offset),
        // There is no data from there to the end.
        Err(Errno::ENXIO) => Ok(false),
        Err(error) => Err(error),
    }
}

fn per_second(size: u64, changed: usize, looked_at: usize, took: Duration) -> Option<u64> {
    let (changed, looked_at) = (u128::try_from(changed).ok()?, u128::try_from(looked_at).ok()?);
    let share = (u128::from(size) * changed).checked_div(looked_at)?;
    u64::try_from((share * 1000).checked_div(took.as_millis())?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn pages_are_from_everywhere_and_inside() {
        const GIB: u64 = 1 << 30;
        for (sizes, wanted) in [
            (vec![64 << 20], 512),
            (vec![2 * GIB, GIB, GIB], 2048),
            (vec![1024 * GIB], 4096),
            (vec![3 * PAGE], 3),
            (vec![], 0),
        ] {
            for random in [0, 7, u64::MAX] {
                let pages = sample(&sizes, |number| random ^ number);
                assert_eq!(pages.len(), wanted, "{sizes:?}");
                let inside =
                    |(file, offset): &(usize, u64)| offset + PAGE <= sizes[*file] && offset % PAGE == 0;
                assert!(pages.iter().all(inside), "{sizes:?}");
                assert!(pages.is_sorted() && pages.windows(2).all(|two| two[0] != two[1]), "{sizes:?}");
                assert_eq!(pages.last().map(|(file, _)| *file), sizes.len().checked_sub(1), "{sizes:?}");
            }
        }
    }

    #[test]
    fn a_share_of_the_memory_in_a_second() {
        let second = Duration::from_secs(1);
        assert_eq!(per_second(1 << 30, 128, 512, second), Some(1 << 28));
        assert_eq!(per_second(1 << 30, 128, 512, second * 2), Some(1 << 27));
        assert_eq!(per_second(1 << 30, 0, 512, second), Some(0));
        assert_eq!(per_second(0, 0, 0, second), None);
    }

    #[tokio::test]
    async fn measuring_dirty_pages_allocates_no_memory() {
        let memory = File::from(memfd_create(c"memory-backend-memfd", MFdFlags::empty()).unwrap());
        memory.set_len(64 << 20).unwrap();
        let (pid, begun) = (std::process::id(), Instant::now());
        let quiet = tokio::spawn(rate(pid));
        assert_eq!(quiet.await.unwrap(), Some(0));
        assert!(begun.elapsed() >= PERIOD);
        assert_eq!(memory.metadata().unwrap().blocks(), 0);
        let busy = tokio::spawn(rate(pid));
        sleep(PERIOD / 2).await;
        // A quarter of the memory, which did not exist before.
        memory.write_all_at(&vec![1; 16 << 20], 16 << 20).unwrap();
        let rate = busy.await.unwrap().unwrap();
        // The rate is lower if the machine is busy and the period was longer than a second.
        assert!(((1 << 20)..=(16 << 20)).contains(&rate), "{rate}");
        assert_eq!(super::rate(0).await, None, "there is no such process");
    }
}
