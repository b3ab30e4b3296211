//! A viewer: the part of RFB 3.8 that is needed to see a guest's screen.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// How long a server may take for anything.
const ANSWER: Duration = Duration::from_secs(30);
/// The security type "None".
const NONE: u8 = 1;

/// A connected screen.
pub struct Screen {
    stream: TcpStream,
    /// Pixels across and down.
    pub size: (u16, u16),
    /// The server's name for it.
    pub name: String,
}

impl Screen {
    /// Connects to a port of this machine, through the handshake.
    pub fn connect(port: u16) -> Result<Self> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).context("connect to the display")?;
        stream.set_read_timeout(Some(ANSWER))?;
        let version: [u8; 12] = read(&mut stream).context("read the version")?;
        ensure!(&version == b"RFB 003.008\n", "{}", String::from_utf8_lossy(&version));
        stream.write_all(&version)?;
        let [count] = read(&mut stream)?;
        let mut kinds = vec![0; count.into()];
        stream.read_exact(&mut kinds)?;
        ensure!(kinds.contains(&NONE), "security types {kinds:?}");
        stream.write_all(&[NONE])?;
        let result: [u8; 4] = read(&mut stream)?;
        ensure!(result == [0; 4], "the server refuses: {result:?}");
        // A shared session.
        stream.write_all(&[1])?;
        let [w1, w2, h1, h2] = read(&mut stream)?;
        let _pixel_format: [u8; 16] = read(&mut stream)?;
        let length: [u8; 4] = read(&mut stream)?;
        let mut name = vec![0; u32::from_be_bytes(length).try_into()?];
        stream.read_exact(&mut name)?;
        let size = (u16::from_be_bytes([w1, w2]), u16::from_be_bytes([h1, h2]));
        Ok(Self { stream, size, name: String::from_utf8_lossy(&name).into_owned() })
    }

    /// Asks for the whole screen; the number of pixels of the first update, whose bytes are all read.
    pub fn update(&mut self) -> Result<usize> {
        let ([w1, w2], [h1, h2]) = (self.size.0.to_be_bytes(), self.size.1.to_be_bytes());
        // SetEncodings: raw only. FramebufferUpdateRequest: from the upper left, not only what changed.
        self.stream.write_all(&[2, 0, 0, 1, 0, 0, 0, 0])?;
        self.stream.write_all(&[3, 0, 0, 0, 0, 0, w1, w2, h1, h2])?;
        let [kind, _, n1, n2] = read(&mut self.stream).context("read the update")?;
        ensure!(kind == 0, "message {kind} is not an update");
        let mut pixels = 0;
        for _ in 0..u16::from_be_bytes([n1, n2]) {
            let [_, _, _, _, w1, w2, h1, h2, e1, e2, e3, e4] = read(&mut self.stream)?;
            let encoding = i32::from_be_bytes([e1, e2, e3, e4]);
            if encoding != 0 {
                bail!("encoding {encoding} was not asked for");
            }
            let area = usize::from(u16::from_be_bytes([w1, w2])) * usize::from(u16::from_be_bytes([h1, h2]));
            // QEMU's own format has four bytes a pixel.
            let mut bytes = vec![0; area * 4];
            self.stream.read_exact(&mut bytes).context("read the pixels")?;
            pixels += area;
        }
        Ok(pixels)
    }

    /// Whether the server has ended the session.
    pub fn has_ended(&mut self) -> bool {
        // Data that it still sends does not matter.
        let mut rest = [0; 4096];
        loop {
            match self.stream.read(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}

fn read<const N: usize>(stream: &mut TcpStream) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}
