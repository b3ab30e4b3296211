//! Several connections for the memory of one guest: QEMU's `multifd`. The first one has the guest's device state, and the others,
//! QEMU's channels, have pages of its memory.
//!
//! QEMU takes no descriptors for them. So on the source it calls `connect` for each, and on the target it listens on a socket and
//! accepts each; this process answers both calls with the connection ([`Offered`]).

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use barevirt_qmp::qapi::qmp::{MigrateSetParameters, MigrationCapability, MultiFDCompression};
use tokio::net::TcpStream;

use crate::process::Offered;

/// QEMU's name for it.
pub(super) const CAPABILITY: MigrationCapability = MigrationCapability::multifd;
/// What the source's QEMU is told to connect to. Nobody reads it.
pub(super) const OFFERED: &str = "unix:/offered";

/// The number of channels, as a parameter of QEMU; `None` without any.
pub(super) fn number(channels: &[OwnedFd]) -> Option<u8> {
    u8::try_from(channels.len()).ok().filter(|number| *number > 0)
}

/// QEMU's parameters for so many channels, the same at both ends. Only channels have compressed memory. A migration without
/// compression says so, since QEMU keeps the parameters of an earlier one.
pub(super) fn parameters(number: Option<u8>, compression: bool) -> MigrateSetParameters {
    let method = match number {
        Some(_) if compression => MultiFDCompression::zstd,
        Some(_) | None => MultiFDCompression::none,
    };
    MigrateSetParameters {
        multifd_channels: number,
        multifd_compression: Some(method),
        ..MigrateSetParameters::default()
    }
}

/// The address on which the target's QEMU listens.
pub(super) fn uri(socket: &Path) -> String {
    format!("unix:{}", socket.display())
}

/// Lets the connections in where QEMU listens on the target, the first one first, each as soon as the source has written to it.
///
/// With encryption, QEMU 10.0 takes for the first one that whose handshake is complete first; the source begins the others'
/// handshakes after that of the first. Without encryption, QEMU's main loop waits for the first bytes of a connection, and answers
/// nothing meanwhile: while disks are copied, none come.
///
/// # Errors
/// If QEMU does not listen, or no descriptors are left.
pub(super) async fn take_in(
    door: &Offered,
    connections: impl IntoIterator<Item = OwnedFd>,
) -> io::Result<()> {
    for connection in connections {
        door.let_in(written_to(connection).await?)?;
    }
    Ok(())
}

/// Waits until something can be read, which may be the end. How long the peer may be silent is a property of the connection, and how
/// long the guest is awaited is the handler's to say.
async fn written_to(connection: OwnedFd) -> io::Result<OwnedFd> {
    let connection = std::net::TcpStream::from(connection);
    connection.set_nonblocking(true)?;
    let connection = TcpStream::from_std(connection)?;
    connection.readable().await?;
    // As QEMU has it from the kernel.
    let connection = connection.into_std()?;
    connection.set_nonblocking(false)?;
    Ok(connection.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use barevirt_confinement::{Answer, Asked};
    use serde_json::json;
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn memory_is_compressed_on_channels_alone() {
        let told = |number, compression| serde_json::to_value(parameters(number, compression)).unwrap();
        let (zstd, none) = ("zstd", "none");
        assert_eq!(told(Some(2), true), json!({"multifd-channels": 2, "multifd-compression": zstd}));
        assert_eq!(told(Some(2), false), json!({"multifd-channels": 2, "multifd-compression": none}));
        for compression in [true, false] {
            assert_eq!(told(None, compression), json!({"multifd-compression": none}));
        }
    }

    #[tokio::test]
    async fn a_connection_is_let_in_when_it_was_written_to_and_after_those_before_it() {
        const LISTENS: u32 = 3;
        let door = Offered::default();
        door.open().unwrap();
        assert!(matches!(door.answer(Asked::Listen(LISTENS)), Answer::InPlace(_)));
        let ((mut first, one), (mut second, two)) =
            (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        second.write_all(b"2").unwrap();
        let taken = take_in(&door, [OwnedFd::from(one), OwnedFd::from(two)]);
        let mut taken = std::pin::pin!(taken);
        assert!(timeout(Duration::from_millis(50), &mut taken).await.is_err());
        assert!(matches!(door.answer(Asked::Accept(LISTENS)), Answer::Usual));
        first.write_all(b"1").unwrap();
        taken.await.unwrap();
        for expected in [b"1", b"2"] {
            let Answer::Returned(connection) = door.answer(Asked::Accept(LISTENS)) else { panic!("nothing") };
            let mut byte = [0];
            assert_eq!(nix::unistd::read(&connection, &mut byte), Ok(1));
            assert_eq!(&byte, expected);
        }
    }
}
