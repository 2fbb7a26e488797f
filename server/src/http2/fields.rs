//! Counts the fields of a message in the Protocol Buffers wire format as it arrives: a decoded field takes far more memory
//! than on the wire.

/// Parser state and field count of one message.
#[derive(Debug)]
pub(crate) struct Fields {
    /// Whether the fields of a nested message in field 1 are counted too.
    nested: bool,
    /// Bytes missing of that nested message; its own field 1 is not special.
    inside: u64,
    count: usize,
    state: State,
    /// The varint that is being read, and its bits so far.
    number: u64,
    bits: u32,
}

/// What is expected next.
#[derive(Clone, Copy, Debug)]
enum State {
    /// The tag of a field: its number and type.
    Key,
    /// A varint that is the value of the field.
    Number,
    /// The length of a field, and whether it is the nested message.
    Length { nested: bool },
    /// The remaining bytes of a field.
    Bytes(u64),
    /// Malformed: a decoder would stop here too.
    Nothing,
}

impl Fields {
    /// None yet.
    pub(crate) fn new(nested: bool) -> Self {
        Self { nested, inside: 0, count: 0, state: State::Key, number: 0, bits: 0 }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Parses the next piece of the message, of any length.
    pub(crate) fn read(&mut self, mut data: &[u8]) {
        loop {
            if let State::Bytes(missing) = self.state {
                let skipped = usize::try_from(missing).unwrap_or(usize::MAX).min(data.len());
                data = data.get(skipped..).unwrap_or_default();
                self.inside = self.inside.saturating_sub(skipped as u64);
                let missing = missing - skipped as u64;
                self.state = if missing == 0 { State::Key } else { State::Bytes(missing) };
            }
            let Some((byte, rest)) = data.split_first() else { return };
            data = rest;
            self.inside = self.inside.saturating_sub(1);
            if let State::Nothing = self.state {
                return;
            }
            if let Some(number) = self.number(*byte) {
                self.state = self.after(number);
            }
        }
    }

    /// The varint, if this is its last byte.
    fn number(&mut self, byte: u8) -> Option<u64> {
        const MAX_BITS: u32 = 70;
        self.number |= u64::from(byte & 0x7f).checked_shl(self.bits).unwrap_or(0);
        self.bits += 7;
        if byte & 0x80 != 0 {
            if self.bits == MAX_BITS {
                self.state = State::Nothing;
            }
            return None;
        }
        self.bits = 0;
        Some(std::mem::take(&mut self.number))
    }

    fn after(&mut self, number: u64) -> State {
        match self.state {
            State::Key => {
                self.count += 1;
                match (number & 7, number >> 3) {
                    (0, _) => State::Number,
                    (1, _) => State::Bytes(8),
                    (2, field) => State::Length { nested: self.nested && self.inside == 0 && field == 1 },
                    // the start or end of a group, whose fields follow
                    (3 | 4, _) => State::Key,
                    (5, _) => State::Bytes(4),
                    _ => State::Nothing,
                }
            }
            State::Number => State::Key,
            State::Length { nested: true } => {
                self.inside = number;
                State::Key
            }
            State::Length { nested: false } => State::Bytes(number),
            State::Bytes(_) | State::Nothing => self.state,
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use telexec_proto::v1::interact_request::Request as Step;
    use telexec_proto::v1::{ExecuteRequest, InteractRequest, TerminalSize};

    use super::*;

    fn request() -> ExecuteRequest {
        ExecuteRequest {
            command: "what looks like other fields".into(),
            argv: vec!["a".into(); 300],
            environment: (0..200).map(|number| (number.to_string(), "\u{1}".repeat(number))).collect(),
            stdin: vec![10; 100_000].into(),
            terminal: Some(TerminalSize { columns: 80, rows: 24 }),
            max_output_bytes: u64::MAX,
            limits: Some(telexec_proto::v1::ResourceLimits { cpus: 1.5, ..Default::default() }),
            ..Default::default()
        }
    }

    fn count(bytes: &[u8], nested: bool, size: usize) -> usize {
        let mut fields = Fields::new(nested);
        bytes.chunks(size).for_each(|chunk| fields.read(chunk));
        fields.count()
    }

    #[test]
    fn fields_are_counted_however_the_message_is_cut() {
        let plain = request().encode_to_vec();
        let nested = InteractRequest { request: Some(Step::Start(request())) }.encode_to_vec();
        for size in [1, 2, 3, 1000, usize::MAX] {
            assert_eq!(count(&plain, false, size), 505, "{size}");
            assert_eq!(count(&nested, true, size), 506, "{size}");
            assert_eq!(count(&nested, false, size), 1, "{size}");
        }
    }

    #[test]
    fn nothing_is_read_of_what_is_malformed() {
        assert_eq!(count(&[0xff; 100], false, 1), 0);
        assert_eq!(count(&[10, 1, b'a', 7, 10, 1, b'a'], false, 7), 2);
        assert_eq!(count(&[10, 200], false, 1), 1);
        assert_eq!(count(&[], false, 1), 0);
    }
}
