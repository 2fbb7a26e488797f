//! The system's log, of messages as of syslog(3).

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

/// A socket that takes messages, each of which is then a line. Dropping it removes the socket.
pub struct Syslog {
    directory: TempDir,
    lines: Arc<Mutex<String>>,
}

impl Syslog {
    /// Listens.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let (directory, lines) = (tempfile::tempdir().unwrap(), Arc::<Mutex<String>>::default());
        let (socket, to) = (UnixDatagram::bind(directory.path().join("log")).unwrap(), Arc::clone(&lines));
        std::thread::spawn(move || {
            let mut message = [0; 8192];
            while let Ok(length) = socket.recv(&mut message) {
                *to.lock().unwrap() += &format!("{}\n", String::from_utf8_lossy(&message[..length]));
            }
        });
        Self { directory, lines }
    }

    /// Its path.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// What has arrived, as it was sent.
    pub fn lines(&self) -> String {
        self.lines.lock().unwrap().clone()
    }

    /// Takes no message until the result is dropped: there is no such socket.
    #[must_use]
    pub fn take_none(&self) -> impl Drop + use<> {
        struct Back(PathBuf, PathBuf);
        impl Drop for Back {
            fn drop(&mut self) {
                std::fs::rename(&self.1, &self.0).unwrap();
            }
        }
        let aside: &Path = &self.directory.path().join("aside");
        std::fs::rename(self.path(), aside).unwrap();
        Back(self.path(), aside.to_owned())
    }
}
