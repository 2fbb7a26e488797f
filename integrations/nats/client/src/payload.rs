//! Messages of telexec.v1, as JSON (<https://protobuf.dev/programming-guides/json>) or binary.

use std::sync::LazyLock;

use async_nats::HeaderMap;
use bytes::Bytes;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};

use crate::headers::{self, CONTENT_TYPE};

const JSON: &str = "application/json";
const BINARY: &str = "application/protobuf";

/// `None` cannot be: what it is made from was made by the build.
static POOL: LazyLock<Option<DescriptorPool>> =
    LazyLock::new(|| DescriptorPool::decode(telexec_proto::FILE_DESCRIPTOR_SET).ok());

/// How a payload is encoded; an answer is as what it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Protocol Buffers' own.
    Binary,
    /// ProtoJSON.
    Json,
}

/// Why a payload is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum Malformed {
    /// An unknown content type.
    #[error("{CONTENT_TYPE} must be {JSON} or {BINARY}, not {0:?}")]
    ContentType(String),
    /// Not this message, in JSON.
    #[error("the payload is no {0} in JSON")]
    Json(&'static str, #[source] serde_json::Error),
    /// JSON where no header says so.
    #[error("the payload looks like JSON: set the header {CONTENT_TYPE}: {JSON}")]
    LooksLikeJson,
    /// Not this message, in the binary format.
    #[error("the payload is no {0} in protobuf's binary format")]
    Binary(&'static str, #[source] prost::DecodeError),
    /// No message has this name.
    #[error("there is no message {0}")]
    Unknown(&'static str),
}

impl Format {
    /// As the header says.
    ///
    /// # Errors
    /// It names another.
    pub fn of(headers: &HeaderMap) -> Result<Self, Malformed> {
        match headers::get(headers, CONTENT_TYPE) {
            None | Some(BINARY) => Ok(Self::Binary),
            Some(JSON) => Ok(Self::Json),
            Some(other) => Err(Malformed::ContentType(other.to_owned())),
        }
    }

    /// For the header.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Binary => BINARY,
            Self::Json => JSON,
        }
    }

    /// The message of telexec.v1 with this name.
    ///
    /// # Errors
    /// The payload is another.
    pub fn decode<M: Message + Default>(self, name: &'static str, payload: &[u8]) -> Result<M, Malformed> {
        let binary = |error| Malformed::Binary(name, error);
        match self {
            // no message here begins so
            Self::Binary if payload.starts_with(b"{") => Err(Malformed::LooksLikeJson),
            Self::Binary => M::decode(payload).map_err(binary),
            Self::Json => {
                let json = |error| Malformed::Json(name, error);
                let mut deserializer = serde_json::Deserializer::from_slice(payload);
                let message = DynamicMessage::deserialize(descriptor(name)?, &mut deserializer).map_err(json)?;
                deserializer.end().map_err(json)?;
                M::decode(&*message.encode_to_vec()).map_err(binary)
            }
        }
    }

    /// The payload of a message of telexec.v1 with this name.
    ///
    /// # Errors
    /// There is no message with this name.
    pub fn encode(self, name: &'static str, message: &impl Message) -> Result<Bytes, Malformed> {
        let encoded = message.encode_to_vec();
        match self {
            Self::Binary => Ok(encoded.into()),
            Self::Json => {
                let message = DynamicMessage::decode(descriptor(name)?, &*encoded);
                let message = message.map_err(|error| Malformed::Binary(name, error))?;
                Ok(serde_json::to_vec(&message).map_err(|error| Malformed::Json(name, error))?.into())
            }
        }
    }
}

fn descriptor(name: &'static str) -> Result<MessageDescriptor, Malformed> {
    let found = POOL.as_ref().and_then(|pool| pool.get_message_by_name(&format!("telexec.v1.{name}")));
    found.ok_or(Malformed::Unknown(name))
}

#[cfg(test)]
mod tests {
    use telexec_proto::v1::ExecuteRequest;

    use super::*;

    #[test]
    fn both_formats_come_back_and_others_are_refused() {
        let request = ExecuteRequest {
            argv: vec!["echo".into()],
            stdin: Bytes::from_static(b"\xff\0"),
            execution_id: "x".into(),
            ..ExecuteRequest::default()
        };
        for format in [Format::Binary, Format::Json] {
            let payload = format.encode("ExecuteRequest", &request).unwrap();
            assert_eq!(format.decode::<ExecuteRequest>("ExecuteRequest", &payload).unwrap(), request);
        }
        for json in [&b"{\"argv\": 1}"[..], b"{\"no_such_field\": 1}", b"{} {}", b"", b"\xff"] {
            let _ = Format::Json.decode::<ExecuteRequest>("ExecuteRequest", json).unwrap_err();
        }
        let _ = Format::Binary.decode::<ExecuteRequest>("ExecuteRequest", b"\xff").unwrap_err();
    }
}
