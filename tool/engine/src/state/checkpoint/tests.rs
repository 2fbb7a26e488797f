use std::io::ErrorKind;
use std::sync::LazyLock;

use proptest::prelude::*;
use rustix::io::dup;
use rustix::pipe::{PipeFlags, pipe_with};

use super::*;
use crate::state::input_file::InputFile;

const STREAMS: [OutputStream; 2] = [OutputStream::Stdout, OutputStream::Stderr];

/// What is done to a checkpoint.
#[derive(Clone, Debug)]
enum Step {
    Add(OutputStream, usize),
    /// From a pipe that has so much, so much at once.
    Take(OutputStream, usize, usize),
    /// From a pipe that has nothing.
    TakeNothing(OutputStream),
    /// Up to this part of the output; with what was dropped of each stream.
    Forget(f64, [u64; 2], bool),
    Unkept(OutputStream, u64),
    Promoted(u64),
    /// The agent is killed.
    Reopen,
}

fn a_step() -> impl Strategy<Value = Step> {
    let a_stream = || prop::sample::select(&STREAMS[..]);
    let a_length = || prop_oneof![4 => 1..100_usize, 2 => 1..20_000_usize, 1 => 100_000..300_000_usize];
    prop_oneof![
        4 => (a_stream(), a_length()).prop_map(|(stream, length)| Step::Add(stream, length)),
        4 => (a_stream(), 1..60_000_usize, 1..70_000_usize)
            .prop_map(|(stream, length, most)| Step::Take(stream, length, most)),
        2 => a_stream().prop_map(Step::TakeNothing),
        3 => (0.0..1.1, any::<[u64; 2]>(), any::<bool>())
            .prop_map(|(part, dropped, at_once)| Step::Forget(part, dropped, at_once)),
        1 => (a_stream(), any::<u64>()).prop_map(|(stream, bytes)| Step::Unkept(stream, bytes)),
        1 => (0..1_u64 << 60).prop_map(Step::Promoted),
        3 => Just(Step::Reopen),
    ]
}

/// Hardly any two places of it have the same bytes around them.
static TEXT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let next =
        |state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    std::iter::successors(Some(1), next).map(|state: u64| state.to_be_bytes()[0]).take(1_300_000).collect()
});

/// What a checkpoint is to have.
#[derive(Default)]
struct Model {
    output: Vec<u8>,
    /// The numbers of their streams.
    streams: Vec<u8>,
    start: usize,
    kept: [u64; 2],
    dropped: [u64; 2],
    unkept: [u64; 2],
    promoted: Option<u64>,
}

impl Model {
    /// The next so many bytes of a stream.
    fn append(&mut self, stream: OutputStream, length: usize) -> Vec<u8> {
        let data = &TEXT[self.output.len() % 999_983..][..length];
        self.output.extend(data);
        self.streams.resize(self.output.len(), u8::try_from(number(stream)).unwrap());
        self.kept[number(stream)] += length as u64;
        data.to_vec()
    }

    fn forget(&mut self, start: usize, dropped: [u64; 2], at_once: bool) {
        let least = if at_once { 1 } else { usize::try_from(GATHERED_BYTES).unwrap() };
        if start >= self.start + least {
            (self.start, self.dropped) = (start.min(self.output.len()), dropped);
        }
    }

    fn check(&self, checkpoint: &Checkpoint) {
        let Saved { chunks, end, kept, dropped, unkept, promoted } = checkpoint.saved().unwrap();
        let mut position = self.start;
        for Output { stream, data, position: at } in chunks {
            assert_eq!(at, position as u64);
            let here = position..position + data.len();
            let streams = vec![u8::try_from(number(stream)).unwrap(); data.len()];
            let is_same = data == self.output[here.clone()] && streams == self.streams[here];
            assert!(!data.is_empty() && is_same, "from {position} on");
            position += data.len();
        }
        assert_eq!((position, end), (self.output.len(), self.output.len() as u64));
        assert_eq!((kept, dropped), (self.kept, self.dropped));
        assert_eq!((unkept, promoted), (self.unkept, self.promoted));
    }
}

/// A pipe that never waits.
fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap()
}

/// The keeper's copy, once the agent's is gone.
fn reopened(checkpoint: Checkpoint) -> Checkpoint {
    let kept = dup(&checkpoint).unwrap();
    drop(checkpoint);
    Checkpoint::open(kept).unwrap()
}

/// Bytes of memory that a file has.
fn memory(file: impl AsFd) -> i64 {
    fstat(file).unwrap().st_blocks * 512
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn all_that_was_not_forgotten_is_there_after_any_crash(steps in prop::collection::vec(a_step(), 1..80)) {
        let (mut checkpoint, mut model) = (Checkpoint::new().unwrap(), Model::default());
        let (read, write) = pipe();
        for step in steps {
            match step {
                Step::Add(stream, length) => {
                    let data = model.append(stream, length);
                    let added = checkpoint.add(stream, &data).unwrap();
                    prop_assert!(checkpoint.read(added, 64).unwrap().concat() == data);
                }
                Step::Take(stream, length, most) => {
                    let mut data = &model.append(stream, length)[..];
                    prop_assert_eq!(rustix::io::write(&write, data).unwrap(), length);
                    while !data.is_empty() {
                        let taken = checkpoint.take(stream, read.as_fd(), most).unwrap();
                        let pieces = checkpoint.read(taken, 64).unwrap();
                        prop_assert!(pieces.iter().all(|piece| (1..=64).contains(&piece.len())));
                        let taken = pieces.concat();
                        prop_assert!(!taken.is_empty() && taken.len() <= most && data.starts_with(&taken));
                        data = &data[taken.len()..];
                    }
                }
                Step::TakeNothing(stream) => {
                    let taken = checkpoint.take(stream, read.as_fd(), 100);
                    prop_assert_eq!(taken.unwrap_err().kind(), ErrorKind::WouldBlock);
                }
                Step::Forget(part, dropped, at_once) => {
                    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
                    let start = (model.output.len() as f64 * part) as usize;
                    checkpoint.forget(start as u64, dropped, at_once);
                    model.forget(start, dropped, at_once);
                }
                Step::Unkept(stream, bytes) => {
                    checkpoint.set_unkept(stream, bytes);
                    model.unkept[number(stream)] = bytes;
                }
                Step::Promoted(position) => {
                    checkpoint.set_promoted(position);
                    model.promoted = Some(position);
                }
                Step::Reopen => {
                    checkpoint = reopened(checkpoint);
                    model.check(&checkpoint);
                }
            }
        }
        model.check(&checkpoint);
        model.check(&reopened(checkpoint));
    }
}

#[test]
fn an_empty_one_has_nothing() {
    let checkpoint = reopened(Checkpoint::new().unwrap());
    Model::default().check(&checkpoint);
    assert!(checkpoint.execution().is_err() && checkpoint.ended().unwrap().is_none());
    assert_eq!((checkpoint.spool().unwrap(), checkpoint.typed().unwrap()), (None, (0, true)));
    assert_eq!(checkpoint.input_closed().unwrap(), Closed::No);
}

#[test]
fn what_is_noted_is_there_after_a_crash() {
    let checkpoint = Checkpoint::new().unwrap();
    checkpoint.set_execution(&[b'x'; 1_000_000]).unwrap();
    // a shorter one takes its place
    checkpoint.set_execution(b"execution").unwrap();
    checkpoint.set_ended(b"ended").unwrap();
    checkpoint.set_spool(b"spool").unwrap();
    checkpoint.set_typed(7, false);
    checkpoint.set_input_closed(Closed::Begun);
    assert_eq!(checkpoint.set_spool(&[0; 16_384]).unwrap_err().kind(), ErrorKind::FileTooLarge);
    let checkpoint = reopened(checkpoint);
    assert_eq!(checkpoint.execution().unwrap(), b"execution");
    assert_eq!(checkpoint.ended().unwrap().unwrap(), b"ended");
    assert_eq!(checkpoint.spool().unwrap().unwrap(), b"spool");
    assert_eq!((checkpoint.typed().unwrap(), checkpoint.input_closed().unwrap()), ((7, false), Closed::Begun));
}

#[test]
fn a_run_in_which_nothing_came_is_none() {
    let (mut checkpoint, mut model) = (Checkpoint::new().unwrap(), Model::default());
    let (read, write) = pipe();
    for stream in [OutputStream::Stdout, OutputStream::Stderr, OutputStream::Stderr] {
        for other in STREAMS {
            assert_eq!(checkpoint.take(other, read.as_fd(), 10).unwrap_err().kind(), ErrorKind::WouldBlock);
        }
        checkpoint = reopened(checkpoint);
        let data = model.append(stream, 3);
        checkpoint.add(stream, &data).unwrap();
        model.check(&checkpoint);
    }
    drop(write);
    for stream in STREAMS {
        assert!(checkpoint.take(stream, read.as_fd(), 10).unwrap().is_empty());
        model.check(&checkpoint);
    }
    // also where all is forgotten
    checkpoint.forget(9, [0, 0], true);
    model.forget(9, [0, 0], true);
    assert!(checkpoint.take(OutputStream::Stdout, read.as_fd(), 10).unwrap().is_empty());
    let checkpoint = reopened(checkpoint);
    checkpoint.add(OutputStream::Stderr, &model.append(OutputStream::Stderr, 5)).unwrap();
    model.check(&reopened(checkpoint));
}

/// Each byte is of the other stream than the one before.
fn switch(checkpoint: &Checkpoint, model: &mut Model, times: usize) {
    for stream in STREAMS.into_iter().cycle().take(times) {
        let data = model.append(stream, 1);
        checkpoint.add(stream, &data).unwrap();
    }
}

#[test]
fn streams_may_alternate_very_often() {
    let (mut checkpoint, mut model) = (Checkpoint::new().unwrap(), Model::default());
    switch(&checkpoint, &mut model, 100_000);
    checkpoint = reopened(checkpoint);
    model.check(&checkpoint);
    let all = memory(&checkpoint);
    for start in [3, 60_001, 99_998] {
        checkpoint.forget(start, [start, 0], true);
        model.forget(usize::try_from(start).unwrap(), [start, 0], true);
        checkpoint = reopened(checkpoint);
        model.check(&checkpoint);
    }
    // also that of the index
    assert!(all > 800_000 && memory(&checkpoint) < 50_000, "{all} bytes, then {}", memory(&checkpoint));
    switch(&checkpoint, &mut model, 10);
    model.check(&reopened(checkpoint));
}

/// The places of the index are used again.
#[test]
fn the_index_goes_round() {
    let mut model = Model::default();
    let checkpoint = Checkpoint::new().unwrap();
    put(&checkpoint.file, WINDOW_AT + 8, &[INDEX_ENTRIES - 3]).unwrap();
    // as a round before
    put(&checkpoint.file, entry_at(0), &[0, 1, 1 << 40, u64::MAX]).unwrap();
    let mut checkpoint = reopened(checkpoint);
    switch(&checkpoint, &mut model, 5);
    checkpoint = reopened(checkpoint);
    model.check(&checkpoint);
    checkpoint.forget(4, [0, 0], true);
    model.forget(4, [0, 0], true);
    switch(&checkpoint, &mut model, 3);
    model.check(&checkpoint);
    model.check(&reopened(checkpoint));
}

#[test]
fn the_memory_of_what_is_forgotten_is_given_back() {
    let (mut checkpoint, mut model) = (Checkpoint::new().unwrap(), Model::default());
    for round in 0..400 {
        let data = model.append(STREAMS[round / 7 % 2], 100_000);
        checkpoint.add(STREAMS[round / 7 % 2], &data).unwrap();
        let start = model.output.len().saturating_sub(500_000);
        checkpoint.forget(start as u64, [0, 0], false);
        model.forget(start, [0, 0], false);
        if round % 100 == 99 {
            checkpoint = reopened(checkpoint);
            model.check(&checkpoint);
        }
        assert!(memory(&checkpoint) < 1 << 20, "{} bytes", memory(&checkpoint));
    }
    checkpoint.forget(u64::MAX, [0, 0], true);
    assert!(memory(&checkpoint) < 50_000, "{} bytes", memory(&checkpoint));
}

#[test]
fn another_file_is_refused() {
    let other = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
    assert!(Checkpoint::open(dup(&other).unwrap()).is_err());
    put(&other, VERSION_AT, &[VERSION]).unwrap();
    put(&other, WINDOW_AT, &[0; 5]).unwrap();
    // it ends before its output
    assert!(Checkpoint::open(dup(&other).unwrap()).is_err());
    ftruncate(&other, OUTPUT_AT + 10).unwrap();
    assert!(Checkpoint::open(dup(&other).unwrap()).is_ok());
    // its output is of no stream
    put(&other, INDEX_AT, &[11 << 1]).unwrap();
    assert!(Checkpoint::open(dup(&other).unwrap()).is_err());
    put(&other, VERSION_AT, &[VERSION + 1]).unwrap();
    assert!(Checkpoint::open(other).is_err());
}

/// So many bytes, of which no two pages are the same.
fn bytes(length: u32) -> Vec<u8> {
    (0..length / 4).flat_map(u32::to_le_bytes).collect()
}

/// What is in a pipe now, up to so much.
fn read(pipe: &OwnedFd, most: usize) -> Vec<u8> {
    let mut some = vec![0; most];
    let length = rustix::io::read(pipe, &mut some).unwrap();
    some.truncate(length);
    some
}

#[test]
fn input_arrives_once_through_any_crash() {
    let (reader, writer) = pipe();
    let (input, mut arrived) = (bytes(2_000_000), Vec::new());
    let first = &input[..300_000];
    let mut file = InputFile::new(first).unwrap();
    let mut lengths = [1, 100, 5000, 200_000].into_iter().cycle();
    while arrived.len() < input.len() {
        let sent = usize::try_from(file.sent().unwrap()).unwrap();
        file = InputFile::open(dup(&file).unwrap());
        if sent < first.len() {
            assert_eq!(file.left(first.len() as u64, sent as u64).unwrap(), first[sent..]);
        }
        let piece = &input[sent..input.len().min(sent + lengths.next().unwrap())];
        match file.send(writer.as_fd(), piece) {
            Ok(more) => assert_eq!(file.sent().unwrap(), (sent + more) as u64),
            Err(error) => {
                assert!(piece.is_empty() || error.kind() == ErrorKind::WouldBlock, "{error}");
                assert_eq!(file.sent().unwrap(), sent as u64);
                arrived.extend(read(&reader, 30_000));
            }
        }
        // what may be in the pipe, and what gathers
        assert!(memory(&file) < 2 << 20, "{} bytes", memory(&file));
    }
    assert!(arrived == input);
}

#[test]
fn input_for_a_pipe_that_is_full_waits() {
    let (reader, writer) = pipe();
    let file = InputFile::new(b"").unwrap();
    let mut sent = 0;
    let error = loop {
        match file.send(writer.as_fd(), b"a line\n") {
            Ok(more) => sent += more,
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), file.sent().unwrap()), (ErrorKind::WouldBlock, sent as u64));
    assert_eq!(read(&reader, sent + 1).len(), sent);
    assert_eq!(file.send(writer.as_fd(), b"more").unwrap(), 4);
    assert_eq!(read(&reader, 100), b"more");
}

#[test]
fn input_that_nobody_reads_is_an_error() {
    let (reader, writer) = pipe();
    let file = InputFile::new(b"first").unwrap();
    assert_eq!(file.send(writer.as_fd(), b"first").unwrap(), 5);
    drop(reader);
    assert_eq!(file.send(writer.as_fd(), b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(file.sent().unwrap(), 5);
}
