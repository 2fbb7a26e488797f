//! An SFTP session with the files of a remote machine.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, stream};
use telexec_executor::ExecutorError;
use telexec_proto::v1::serve_sftp_request::Step;
use telexec_proto::v1::{ServeSftpHeader, ServeSftpRequest};

use crate::RemoteFiles;
use crate::error;

/// What comes of an SFTP session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SftpAnswer {
    /// Packets, in pieces of any length.
    Data(Bytes),
    /// For the user to read: why the policy denied something, which SFTP has no words for. May have any characters.
    Notice(String),
}

impl RemoteFiles {
    /// Begins an SFTP session, version 3, as this user or the default one. `packets` go to the agent in pieces of any length, and
    /// so come the answers, with what the user should read between them; the end of `packets` ends the session in an orderly way. Dropping the answers cancels it.
    ///
    /// # Errors
    /// The agent could not be asked.
    pub async fn sftp(
        &self,
        user: Option<String>,
        packets: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<BoxStream<'static, Result<SftpAnswer, ExecutorError>>, ExecutorError> {
        let request = |step| ServeSftpRequest { step: Some(step) };
        let header = request(Step::Header(ServeSftpHeader { user: user.unwrap_or_default() }));
        let requests = stream::iter([header]).chain(packets.map(move |data| request(Step::Data(data))));
        let answers = self.answer(self.client.clone().serve_sftp(requests).await)?;
        let endpoint = Arc::clone(&self.endpoint);
        let data = answers.map(move |answer| match answer {
            Ok(answer) if answer.notice.is_empty() => Ok(SftpAnswer::Data(answer.data)),
            Ok(answer) => Ok(SftpAnswer::Notice(answer.notice)),
            Err(status) => Err(error::following(status, &endpoint)),
        });
        Ok(data.boxed())
    }
}
