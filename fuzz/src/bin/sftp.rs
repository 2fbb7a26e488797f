//! SFTP sessions of any bytes: the answers are whole packets, and nothing is read that was not permitted.

#![no_main]

use std::io;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use telexec_files::sftp::{Access, ClosedFile, Gate, serve};

fuzz_target!(|bytes: &[u8]| {
    let mut below = Below { directory: directory(), is_in_use: false };
    let mut output = Vec::new();
    let _ = serve(bytes, &mut output, &mut below);
    let mut rest = &output[..];
    while let Some((length, after)) = rest.split_first_chunk() {
        let length = u32::from_be_bytes(*length) as usize;
        assert!(length > 4 && length <= 256 * 1024, "{length}");
        rest = after.get(length..).expect("a whole packet");
    }
    assert!(rest.is_empty());
});

/// Permits to read what is below the directory where sessions begin, that of the project: the seeds name what is in it.
/// Nothing may be written, or else files could become so long that they take long.
struct Below {
    directory: &'static [u8],
    is_in_use: bool,
}

impl Gate for Below {
    fn permit(&mut self, access: Access, real_path: &[u8]) -> io::Result<bool> {
        assert!(real_path.starts_with(b"/") && !real_path.contains(&0));
        let permitted = access != Access::Write && real_path.starts_with(self.directory);
        self.is_in_use |= permitted;
        Ok(permitted)
    }

    fn closed(&mut self, file: ClosedFile) -> io::Result<()> {
        assert!(self.is_in_use && file.path.starts_with(self.directory) && file.bytes_written == 0);
        Ok(())
    }
}

fn directory() -> &'static [u8] {
    static DIRECTORY: OnceLock<Vec<u8>> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = std::env::current_dir().and_then(|directory| directory.canonicalize());
        directory.expect("a directory to begin in").into_os_string().into_encoded_bytes()
    })
}
