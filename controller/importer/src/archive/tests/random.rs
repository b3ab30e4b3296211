//! Archives of random entries, whose names and targets are made of the parts that matter.

use super::*;

/// Archives that are tried.
const ARCHIVES: u32 = 400;
const NAMES: [&str; 10] = ["a", "a", "a", "b", "b", "c", "c", ".", "..", ".archive.import"];
const TARGETS: [&str; 6] = ["..", "..", ".", "", "a", "b"];
const KINDS: [u8; 12] = *b"00055522221L";

/// Numbers that look random and are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % most
    }

    fn path(&mut self, of: &[&'static str]) -> String {
        let parts: Vec<&str> = (0..=self.below(3)).map(|_| of[self.below(of.len())]).collect();
        parts.join("/")
    }

    fn archive(&mut self) -> Vec<u8> {
        let entries = 1 + self.below(4);
        let made: Vec<(u8, String, String)> = (0..entries)
            .map(|_| (KINDS[self.below(KINDS.len())], self.path(&NAMES), self.path(&TARGETS)))
            .collect();
        archive(
            &made
                .iter()
                .map(|(kind, name, target)| Raw {
                    kind: *kind,
                    name: name.as_bytes(),
                    target: target.as_bytes(),
                    mode: 0o6755,
                    contents: if matches!(kind, b'0' | b'L') { target.as_bytes() } else { b"" },
                })
                .collect::<Vec<_>>(),
        )
    }
}

/// Every link below the directory leads to something within the claim, or to nothing.
fn links_stay(claim: &Path, directory: &Path) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let found = path.symlink_metadata().unwrap();
        if found.is_symlink() {
            if let Ok(end) = path.canonicalize() {
                assert!(end.starts_with(claim), "{} leads to {}", path.display(), end.display());
            }
        } else if found.is_dir() {
            links_stay(claim, &path);
        } else {
            assert!(found.is_file(), "{}", path.display());
        }
        assert!(found.is_symlink() || found.mode() & 0o7000 == 0, "{}", path.display());
    }
}

#[test]
fn nothing_outside_of_the_claim_is_reached_whatever_the_entries_are() {
    let mut numbers = Numbers(7);
    let mut taken = 0;
    for _ in 0..ARCHIVES {
        let world = World::new();
        let bytes = numbers.archive();
        match world.unpack(&bytes) {
            Ok(()) => taken += 1,
            Err(failure) => {
                assert!(failure.is_final(), "{failure}");
                assert_eq!(std::fs::read_dir(world.claim()).unwrap().count(), 0, "{failure}");
            }
        }
        let claim = world.claim().canonicalize().unwrap();
        links_stay(&claim, &claim);
    }
    assert!(taken > 20, "{taken} archives were taken");
}
