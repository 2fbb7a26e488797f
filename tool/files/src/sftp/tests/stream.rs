use std::collections::VecDeque;
use std::io::{Read, Write};

use super::super::wire::MAX_DATA;
use super::*;

/// Gives what it is asked for in pieces, and counts how often.
struct Pieces {
    pieces: VecDeque<Vec<u8>>,
    reads: usize,
}

impl Read for &mut Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reads += 1;
        let Some(piece) = self.pieces.pop_front() else { return Ok(0) };
        let (now, later) = piece.split_at(piece.len().min(buffer.len()));
        buffer[..now.len()].copy_from_slice(now);
        if !later.is_empty() {
            self.pieces.push_front(later.to_vec());
        }
        Ok(now.len())
    }
}

#[derive(Default)]
struct Writes {
    bytes: Vec<u8>,
    count: usize,
}

impl Write for &mut Writes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.count += 1;
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads and writes of the longest, of odd lengths, and in whatever pieces they come.
#[test]
fn many_requests_in_flight_are_answered_in_order() {
    let scene = Scene::new();
    let content: Vec<u8> = (0..1_000_003u32).flat_map(|n| (n.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
    let mut requests = Requests::new();
    requests.open(&scene.bytes("file"), NEW | open::READ);
    let (mut offset, mut lengths) = (0, [MAX_DATA as usize, 1, 32_768, 100_001, MAX_DATA as usize].iter().cycle());
    while offset < content.len() {
        let end = content.len().min(offset + lengths.next().unwrap());
        requests.write(0, offset as u64, &content[offset..end]);
        offset = end;
    }
    let writes = requests.count;
    // more than the longest is cut
    let reads = content.len().div_ceil(MAX_DATA as usize);
    for n in 0..reads {
        requests.read(0, n as u64 * u64::from(MAX_DATA), u32::MAX);
    }
    for piece in [1 << 30, 65_536, 7919] {
        let mut input = Pieces { pieces: requests.bytes.chunks(piece).map(<[u8]>::to_vec).collect(), reads: 0 };
        let mut output = Writes::default();
        serve(&mut input, &mut output, &mut Judge::default()).unwrap();
        let answers = answers(&output.bytes);
        assert!(answers[1..writes as usize].iter().all(|answer| answer.is(Status::Ok)));
        let read: Vec<u8> = answers[writes as usize..]
            .iter()
            .flat_map(|answer| match answer {
                Answer::Data(data) => data.clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(read == content);
    }
}

#[test]
fn small_requests_that_came_together_cost_one_read_and_one_write() {
    let scene = Scene::new();
    let mut requests = Requests::new();
    requests.open(&scene.bytes("file"), NEW);
    for n in 0..2000 {
        requests.write(0, n, b"x");
    }
    let mut input = Pieces { pieces: [requests.bytes.clone()].into(), reads: 0 };
    let mut output = Writes::default();
    serve(&mut input, &mut output, &mut Judge::default()).unwrap();
    assert_eq!((input.reads, output.count), (2, 1));
    assert_eq!(answers(&output.bytes).len(), 2001);
}

#[test]
fn what_is_not_sftp_ends_the_session() {
    let scene = Scene::new();
    let fails = |bytes: &[u8]| {
        let (mut output, mut judge) = (Vec::new(), Judge::default());
        let error = serve(bytes, &mut output, &mut judge).unwrap_err();
        (error.to_string(), output, judge)
    };
    assert!(fails(b"\0\0\0\0").0.contains("of 0 bytes"));
    assert!(fails(b"GET / HTTP/1.1\r\n\r\n").0.contains("an SFTP packet of"));
    assert!(fails(b"\0\0\0\x05\x11\0\0\0\x01").0.contains("before the version"));
    assert!(fails(b"\0\0\0\x02\x01\0").0.contains("lacks fields"));
    assert!(serve(&b""[..], Vec::new(), &mut Judge::default()).is_ok());

    // what was asked before is answered, and what is open is told of
    let mut requests = Requests::new();
    requests.open(&scene.bytes("file"), NEW).write(0, 0, b"abc");
    requests.bytes.extend_from_slice(&[0, 4, 4, 1]);
    let (text, output, judge) = fails(&requests.bytes);
    assert!(text.contains("(at most 263168)"), "{text}");
    assert_eq!(answers(&output).len(), 2);
    assert_eq!(judge.closed[0].bytes_written, 3);

    // a packet that lacks its end
    let whole = requests.bytes.len() - 4;
    assert_eq!(fails(&requests.bytes[..whole - 1]).1, fails(&requests.bytes[..whole - 3]).1);
}

/// Permits what is below this directory, and no size that takes long.
struct Below(Vec<u8>);

impl Gate for Below {
    fn permit(&mut self, _: Access, real_path: &[u8]) -> io::Result<bool> {
        Ok(real_path.starts_with(&self.0))
    }

    fn closed(&mut self, _: ClosedFile) -> io::Result<()> {
        Ok(())
    }
}

struct Random(u64);

impl Random {
    /// xorshift64
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// Sessions of random requests, some of them cut, some with a byte changed.
#[test]
fn no_input_makes_it_panic() {
    let scene = Scene::new();
    symlink("a", scene.path("loop")).unwrap();
    let paths: Vec<Vec<u8>> = ["a", "b", "dir", "dir/a", "loop", "", "a/", "none/x", "."]
        .iter()
        .map(|name| scene.bytes(name))
        .chain([b"".to_vec(), b"a\0b".to_vec(), vec![b'x'; 5000], b"/proc/self/fd/0".to_vec()])
        .collect();
    let kinds: Vec<u8> = (0..=22).chain([200; 12]).chain([255]).collect();
    let extensions = super::super::extensions::EXTENSIONS;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..3000 {
        let mut requests = Requests::new();
        for _ in 0..random.below(30) {
            let kind = *random.pick(&kinds);
            requests.add(kind, |mut packet| {
                if kind == request::EXTENDED {
                    packet = packet.string(random.pick(&extensions).0.as_bytes());
                }
                for _ in 0..random.below(6) {
                    packet = match random.below(6) {
                        0 | 1 => packet.string(random.pick::<Vec<u8>>(&paths)),
                        2 | 3 => packet.string(&random.below(4).to_be_bytes()),
                        4 => packet.u32(random.below(64) as u32),
                        _ => packet.u64(random.below(1000)),
                    };
                }
                packet.u64(random.below(64))
            });
        }
        let length = requests.bytes.len() as u64;
        match random.below(3) {
            0 => requests.bytes.truncate(random.below(length) as usize),
            1 => requests.bytes[random.below(length) as usize] ^= 1 << random.below(8),
            _ => {}
        }
        let mut output = Vec::new();
        let _ = serve(&requests.bytes[..], &mut output, &mut Below(scene.bytes("")));
        // whole packets, whatever came
        let mut stream = Fields::of(&output);
        while !stream.is_empty() {
            stream.string().unwrap();
        }
    }
}
