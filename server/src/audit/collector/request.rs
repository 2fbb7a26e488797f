//! The request and response of `opentelemetry.proto.collector.logs.v1.LogsService/Export`. Of a request only the bodies of the log
//! records are decoded, one after another: many empty messages would take much more memory than they have bytes.

use bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

/// From the request to its log records: `resource_logs`, `scope_logs`, `log_records`.
const LOG_RECORDS: [u32; 3] = [1, 2, 2];
/// From a log record to the text of its body: `body`, `string_value`.
const BODY_TEXT: [u32; 2] = [5, 1];

/// `ExportLogsServiceResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportLogsResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

/// `ExportLogsPartialSuccess`: log records that are not to be sent again.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected_log_records: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

/// Passes the text of each log record in an `ExportLogsServiceRequest` to `take`; `None`: its body is none.
///
/// # Errors
/// The request is malformed, from there on.
pub(super) fn each_text(request: Bytes, mut take: impl FnMut(Option<Bytes>)) -> Result<(), Malformed> {
    each(request, &LOG_RECORDS, &mut |record| {
        let mut text = None;
        each(record, &BODY_TEXT, &mut |found| {
            text = Some(found);
            Ok(())
        })?;
        take(text);
        Ok(())
    })
}

/// It is no message of this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl From<DecodeError> for Malformed {
    fn from(_: DecodeError) -> Self {
        Self
    }
}

/// Passes what is in these fields, each within the one before it, to `take`.
fn each(
    mut message: Bytes,
    fields: &[u32],
    take: &mut dyn FnMut(Bytes) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let Some((field, below)) = fields.split_first() else { return take(message) };
    while message.has_remaining() {
        let (found, wire_type) = decode_key(&mut message)?;
        if found != *field || wire_type != WireType::LengthDelimited {
            skip_field(wire_type, found, &mut message, DecodeContext::default())?;
            continue;
        }
        let length = usize::try_from(decode_varint(&mut message)?).unwrap_or(usize::MAX);
        if length > message.remaining() {
            return Err(Malformed);
        }
        each(message.split_to(length), below, take)?;
    }
    Ok(())
}

/// Leaves requests as they are.
#[derive(Debug, Default)]
pub(super) struct ExportCodec;

impl Codec for ExportCodec {
    type Encode = ExportLogsResponse;
    type Decode = Bytes;
    type Encoder = ProstEncoder<ExportLogsResponse>;
    type Decoder = RawDecoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> RawDecoder {
        RawDecoder
    }
}

#[derive(Debug)]
pub(super) struct RawDecoder;

impl Decoder for RawDecoder {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(message.copy_to_bytes(message.remaining())))
    }
}
