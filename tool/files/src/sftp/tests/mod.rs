mod files;
mod gate; // questions
mod paths;
mod stream; // what goes over the pipes

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tempfile::TempDir;

use super::answers::Packet;
use super::attributes::Attributes;
use super::wire::{Fields, Status, answer, open, request};
use super::{Access, ClosedFile, Gate, serve};

struct Scene(TempDir);

impl Scene {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        self.path(name).into_os_string().into_vec()
    }

    fn names(&self) -> Vec<OsString> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }
}

/// Permits all or nothing, and remembers.
#[derive(Default)]
struct Judge {
    denies: bool,
    questions: Vec<(Access, Vec<u8>)>,
    closed: Vec<ClosedFile>,
}

impl Gate for Judge {
    fn permit(&mut self, access: Access, real_path: &[u8]) -> io::Result<bool> {
        self.questions.push((access, real_path.to_vec()));
        Ok(!self.denies)
    }

    fn closed(&mut self, file: ClosedFile) -> io::Result<()> {
        self.closed.push(file);
        Ok(())
    }
}

/// Requests, as they go over the wire.
struct Requests {
    bytes: Vec<u8>,
    count: u32,
}

impl Requests {
    fn new() -> Self {
        Self { bytes: vec![0, 0, 0, 5, request::INIT, 0, 0, 0, 3], count: 0 }
    }

    fn add(&mut self, kind: u8, build: impl FnOnce(Packet) -> Packet) -> &mut Self {
        self.bytes.extend_from_slice(&build(Packet::new(kind, self.count)).finish());
        self.count += 1;
        self
    }

    fn path(&mut self, kind: u8, path: &[u8]) -> &mut Self {
        self.add(kind, |packet| packet.string(path))
    }

    fn two(&mut self, kind: u8, one: &[u8], other: &[u8]) -> &mut Self {
        self.add(kind, |packet| packet.string(one).string(other))
    }

    fn extended(&mut self, name: &str, build: impl FnOnce(Packet) -> Packet) -> &mut Self {
        self.add(request::EXTENDED, |packet| build(packet.string(name.as_bytes())))
    }

    fn open(&mut self, path: &[u8], how: u32) -> &mut Self {
        self.add(request::OPEN, |packet| packet.string(path).u32(how).attributes(&Attributes::default()))
    }

    fn set(&mut self, kind: u8, of: &[u8], attributes: &Attributes) -> &mut Self {
        self.add(kind, |packet| packet.string(of).attributes(attributes))
    }

    fn handle(&mut self, kind: u8, handle: u64) -> &mut Self {
        self.path(kind, &handle.to_be_bytes())
    }

    fn read(&mut self, handle: u64, offset: u64, length: u32) -> &mut Self {
        self.add(request::READ, |packet| packet.string(&handle.to_be_bytes()).u64(offset).u32(length))
    }

    fn write(&mut self, handle: u64, offset: u64, data: &[u8]) -> &mut Self {
        self.add(request::WRITE, |packet| packet.string(&handle.to_be_bytes()).u64(offset).string(data))
    }

    fn copy(&mut self, from: (u64, u64), length: u64, to: (u64, u64)) -> &mut Self {
        self.extended("copy-data", |packet| {
            let packet = packet.string(&from.0.to_be_bytes()).u64(from.1).u64(length);
            packet.string(&to.0.to_be_bytes()).u64(to.1)
        })
    }

    fn answers(&self, judge: &mut Judge) -> Vec<Answer> {
        let mut output = Vec::new();
        serve(&self.bytes[..], &mut output, judge).unwrap();
        let answers = answers(&output);
        assert_eq!(answers.len(), self.count as usize);
        answers
    }

    fn done(&self) -> Vec<Answer> {
        self.answers(&mut Judge::default())
    }

    fn one(&self) -> Answer {
        self.done().pop().unwrap()
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Answer {
    Status(u32, String),
    Handle(u64),
    Data(Vec<u8>),
    Names(Vec<(Vec<u8>, Vec<u8>, Attributes)>),
    Attributes(Attributes),
    Extended(Vec<u8>),
}

impl Answer {
    fn is(&self, status: Status) -> bool {
        matches!(self, Self::Status(code, _) if *code == status as u32)
    }

    fn text(&self) -> &str {
        match self {
            Self::Status(_, text) => text,
            other => panic!("{other:?}"),
        }
    }

    fn name(&self) -> &[u8] {
        match self {
            Self::Names(names) if names.len() == 1 => &names[0].0,
            other => panic!("{other:?}"),
        }
    }
}

/// In order, without the version packet.
fn answers(bytes: &[u8]) -> Vec<Answer> {
    let mut stream = Fields::of(bytes);
    let mut version = Fields::of(stream.string().unwrap());
    assert_eq!((version.u8().unwrap(), version.u32().unwrap()), (answer::VERSION, 3));
    let mut all = Vec::new();
    while !stream.is_empty() {
        let mut fields = Fields::of(stream.string().unwrap());
        let (kind, id) = (fields.u8().unwrap(), fields.u32().unwrap());
        assert_eq!(id as usize, all.len());
        all.push(match kind {
            answer::STATUS => {
                let (code, text) = (fields.u32().unwrap(), fields.string().unwrap().to_vec());
                assert_eq!(fields.string().unwrap(), b"");
                Answer::Status(code, String::from_utf8(text).unwrap())
            }
            answer::HANDLE => Answer::Handle(u64::from_be_bytes(fields.string().unwrap().try_into().unwrap())),
            answer::DATA => Answer::Data(fields.string().unwrap().to_vec()),
            answer::NAME => {
                let count = fields.u32().unwrap();
                Answer::Names((0..count).map(|_| name(&mut fields)).collect())
            }
            answer::ATTRIBUTES => Answer::Attributes(Attributes::of(&mut fields).unwrap()),
            answer::EXTENDED => {
                let mut rest = Vec::new();
                while let Ok(byte) = fields.u8() {
                    rest.push(byte);
                }
                Answer::Extended(rest)
            }
            other => panic!("{other}"),
        });
        assert!(fields.is_empty());
    }
    all
}

fn name(fields: &mut Fields<'_>) -> (Vec<u8>, Vec<u8>, Attributes) {
    let (name, long) = (fields.string().unwrap().to_vec(), fields.string().unwrap().to_vec());
    (name, long, Attributes::of(fields).unwrap())
}

const NEW: u32 = open::WRITE | open::CREATE | open::TRUNCATE;
