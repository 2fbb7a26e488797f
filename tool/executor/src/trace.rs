//! Where a command belongs in a trace, as the recommendation W3C Trace Context passes it on.

use std::fmt::Write;

/// The environment variable in which a command finds the field `traceparent`.
pub const TRACEPARENT: &str = "TRACEPARENT";
/// The environment variable in which a command finds the field `tracestate`.
pub const TRACESTATE: &str = "TRACESTATE";

/// Of the flags, those that are known: sampled, and random.
const KNOWN_FLAGS: u8 = 0b11;
const SAMPLED: u8 = 0b01;
/// More of them are malformed.
const MAX_MEMBERS: usize = 32;

/// A span of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    parent_id: Option<[u8; 8]>,
    flags: u8,
    state: String,
}

impl TraceContext {
    /// Reads the headers `traceparent` and `tracestate` (empty: there is none). `None`: the first is malformed, and then
    /// there is no trace, as the recommendation has it; a `tracestate` that is malformed is left out.
    pub fn parse(traceparent: &str, tracestate: &str) -> Option<Self> {
        let text = traceparent.trim_matches([' ', '\t']);
        // anything may follow what later versions have in common with the first
        let (known, rest) = text.split_at_checked(55)?;
        let mut parts = known.split('-');
        let [version] = bytes(parts.next()?)?;
        let (trace_id, span_id) = (bytes(parts.next()?)?, bytes(parts.next()?)?);
        let [flags] = bytes(parts.next()?)?;
        let is_whole = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.is_empty() || rest.starts_with('-'),
        };
        let is_named = trace_id != [0; 16] && span_id != [0; 8];
        let known_flags = if version == 0 { KNOWN_FLAGS } else { SAMPLED };
        let state = Self::state(tracestate).unwrap_or_default();
        let context = Self { trace_id, span_id, parent_id: None, flags: flags & known_flags, state };
        (is_whole && is_named && parts.next().is_none()).then_some(context)
    }

    /// What this process was handed in its environment.
    pub fn from_environment() -> Option<Self> {
        let state = std::env::var(TRACESTATE).unwrap_or_default();
        Self::parse(&std::env::var(TRACEPARENT).ok()?, &state)
    }

    /// The first span of a trace.
    pub fn root(trace_id: [u8; 16], span_id: [u8; 8]) -> Self {
        Self { trace_id, span_id, parent_id: None, flags: 0, state: String::new() }
    }

    /// The members of a `tracestate`, if they are well formed.
    fn state(text: &str) -> Option<String> {
        let members: Vec<&str> = text.split(',').map(|member| member.trim_matches([' ', '\t'])).collect();
        let members: Vec<&str> = members.into_iter().filter(|member| !member.is_empty()).collect();
        let keys = members.iter().map(|member| {
            let (key, value) = member.split_once('=')?;
            (is_key(key) && is_value(value)).then_some(key)
        });
        let mut keys = keys.collect::<Option<Vec<_>>>()?;
        keys.sort_unstable();
        let are_different = keys.windows(2).all(|pair| pair.first() != pair.last());
        (are_different && members.len() <= MAX_MEMBERS).then(|| members.join(","))
    }

    /// A span of the same trace whose parent this is.
    #[must_use]
    pub fn child(&self, span_id: [u8; 8]) -> Self {
        Self { span_id, parent_id: Some(self.span_id), ..self.clone() }
    }

    /// The same span, recorded by someone or not.
    #[must_use]
    pub fn sampled(mut self, sampled: bool) -> Self {
        self.flags = self.flags & !SAMPLED | if sampled { SAMPLED } else { 0 };
        self
    }

    /// Whether its spans are recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        hex(&self.trace_id)
    }

    /// 16 hexadecimal digits.
    pub fn span_id(&self) -> String {
        hex(&self.span_id)
    }

    /// The same of the span's parent, if it is known.
    pub fn parent_id(&self) -> Option<String> {
        self.parent_id.as_ref().map(|id| hex(id))
    }

    /// The header, or the value of the variable, for those whose parent this span is.
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-{:02x}", self.trace_id(), self.span_id(), self.flags)
    }

    /// What goes with it; empty: nothing does.
    pub fn tracestate(&self) -> &str {
        &self.state
    }
}

/// So many bytes of lower-case digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let read = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    let read = read.collect::<Option<Vec<u8>>>().filter(|_| rest.is_empty())?;
    read.try_into().ok()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // a String takes everything
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A vendor's name, or that of a tenant of a vendor's system.
fn is_key(key: &str) -> bool {
    let is_part = |text: &str, most: usize| {
        let is_known = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/');
        text.len() <= most && text.bytes().all(is_known)
    };
    let begins = |text: &str| text.bytes().next().is_some_and(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9'));
    match key.split_once('@') {
        None => begins(key) && is_part(key, 256),
        Some((tenant, system)) => {
            let is_system = system.starts_with(|first: char| first.is_ascii_lowercase()) && is_part(system, 14);
            begins(tenant) && is_part(tenant, 241) && is_system
        }
    }
}

fn is_value(value: &str) -> bool {
    let is_known = |byte: u8| matches!(byte, b' '..=b'~') && byte != b',' && byte != b'=';
    (1..=256).contains(&value.len()) && value.bytes().all(is_known)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const PARENT: &str = "b7ad6b7169203331";

    fn parse(traceparent: &str) -> Option<TraceContext> {
        TraceContext::parse(traceparent, "")
    }

    /// The cases of the recommendation and of its test suite, trace-context/test/test.py.
    #[test]
    fn a_traceparent_is_read_strictly() {
        for (text, expected) in [
            (format!("00-{TRACE}-{PARENT}-01"), "01"),
            (format!("00-{TRACE}-{PARENT}-00"), "00"),
            // flags that are not known yet
            (format!("00-{TRACE}-{PARENT}-ff"), "03"),
            (format!("00-{TRACE}-{PARENT}-0a"), "02"),
            // versions that are not known yet
            (format!("cc-{TRACE}-{PARENT}-01"), "01"),
            (format!("cc-{TRACE}-{PARENT}-01-what-the-future-will-be-like"), "01"),
            (format!("01-{TRACE}-{PARENT}-03"), "01"),
            // optional white space
            (format!("\t 00-{TRACE}-{PARENT}-01 \t"), "01"),
        ] {
            let trace = parse(&text).expect(&text);
            assert_eq!(trace.traceparent(), format!("00-{TRACE}-{PARENT}-{expected}"), "{text}");
            assert_eq!(trace.is_sampled(), expected == "01" || expected == "03");
        }
        let upper = TRACE.to_uppercase();
        for text in [
            String::new(),
            "00".to_owned(),
            "-".repeat(55),
            format!("00-{TRACE}-{PARENT}"),
            format!("00-{TRACE}-{PARENT}-"),
            format!("00-{TRACE}-{PARENT}-1"),
            format!("00-{TRACE}-{PARENT}-01."),
            format!("00-{TRACE}-{PARENT}-01-"),
            format!("00-{TRACE}-{PARENT}-01-what-the-future-will-be-like"),
            format!("cc-{TRACE}-{PARENT}-01.what-the-future-will-not-be-like"),
            format!("ff-{TRACE}-{PARENT}-01"),
            format!("0-{TRACE}-{PARENT}-001"),
            format!(".0-{TRACE}-{PARENT}-01"),
            format!("0G-{TRACE}-{PARENT}-01"),
            format!("+0-{TRACE}-{PARENT}-01"),
            format!("00-{}-{PARENT}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{upper}-{PARENT}-01"),
            format!("00-{TRACE}-{}-01", PARENT.to_uppercase()),
            format!("00-{TRACE}-{PARENT}-0A"),
            format!("00-.{}-{PARENT}-01", &TRACE[1..]),
            format!("00-{}-{PARENT}-011", &TRACE[1..]),
            format!("00-{TRACE}-{PARENT}0-1"),
            format!("00_{TRACE}_{PARENT}_01"),
            format!("00-{TRACE}-{PARENT}-0\u{e9}"),
            format!("00 -{TRACE}-{PARENT}-0"),
        ] {
            assert_eq!(parse(&text), None, "{text}");
        }
    }

    #[test]
    fn a_tracestate_is_passed_on_or_left_out() {
        let state = |text: &str| {
            let trace = TraceContext::parse(&format!("00-{TRACE}-{PARENT}-01"), text).unwrap();
            trace.tracestate().to_owned()
        };
        let many = |count: usize| (0..count).map(|at| format!("bar{at:02}={at:02}")).collect::<Vec<_>>().join(",");
        let tenant = format!("{}@{}=1", "t".repeat(241), "v".repeat(14));
        for text in [
            "foo=1",
            "foo=1,bar=2",
            "foo=  1",
            "foo-_*/bar=bar4",
            "0foo=1",
            "fw529a3039@dt=FfAkjtZDsd",
            &tenant,
            &format!("{}=1", "z".repeat(256)),
            &format!("foo={}", "v".repeat(256)),
            "foo=!\"#$%&'()*+-./:;<>?@[\\]^_`{|}~",
            &many(32),
        ] {
            assert_eq!(state(text), text, "{text}");
        }
        for (text, expected) in [
            ("foo=1 \t , \t bar=2, \t baz=3", "foo=1,bar=2,baz=3"),
            ("foo=1,", "foo=1"),
            (" ,, foo=1", "foo=1"),
            ("", ""),
        ] {
            assert_eq!(state(text), expected, "{text}");
        }
        for text in [
            "foo =1",
            "FOO=1",
            "foo.bar=1",
            "=1",
            "foo",
            "foo=",
            "foo@=1,bar=2",
            "@foo=1,bar=2",
            "foo@@bar=1",
            "foo@bar@baz=1",
            "foo@0bar=1",
            "foo=bar=baz",
            "foo=\u{7f}",
            "foo=\u{e9}",
            "foo=1,foo=2",
            &format!("{}@v=1", "t".repeat(242)),
            &format!("t@{}=1", "v".repeat(15)),
            &format!("{}=1", "z".repeat(257)),
            &format!("foo={}", "v".repeat(257)),
            &many(33),
        ] {
            assert_eq!(state(text), "", "{text}");
        }
    }

    #[test]
    fn a_child_goes_on_in_the_same_trace() {
        let parent = TraceContext::parse(&format!("00-{TRACE}-{PARENT}-01"), "foo=1").unwrap();
        assert_eq!(parent.parent_id(), None);
        let child = parent.child([1; 8]);
        assert_eq!(child.traceparent(), format!("00-{TRACE}-0101010101010101-01"));
        assert_eq!((child.parent_id().as_deref(), child.tracestate()), (Some(PARENT), "foo=1"));
        assert_eq!(child.sampled(false).traceparent(), format!("00-{TRACE}-0101010101010101-00"));
    }
}
