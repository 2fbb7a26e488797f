//! How messages become bytes: as prost has it, but a request that is no such message is the caller's fault.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder};
use tonic_prost::{ProstDecoder, ProstEncoder};

/// The codec of all services in [`crate::v1`].
#[derive(Clone, Debug)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + Send + 'static, U: Message + Default + Send + 'static> tonic::codec::Codec for Codec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = MessageDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        MessageDecoder(ProstDecoder::default())
    }
}

/// Decodes a message. Malformed requests are INVALID_ARGUMENT, malformed answers INTERNAL, as prost has both.
#[derive(Clone, Debug)]
pub struct MessageDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default> Decoder for MessageDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, data: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        self.0.decode(data).map_err(|status| match is_request::<U>() {
            true => Status::invalid_argument(status.message()),
            false => status,
        })
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

/// `buf lint` sees to it that requests, and only they, are called so.
fn is_request<U>() -> bool {
    std::any::type_name::<U>().ends_with("Request")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    #[test]
    fn requests_are_known_by_their_names() {
        assert!(is_request::<v1::ExecuteRequest>() && is_request::<v1::InteractRequest>());
        assert!(!is_request::<v1::ExecutionEvent>() && !is_request::<v1::RunResponse>());
    }
}
