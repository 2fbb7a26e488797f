//! The certificate that a peer presents in a handshake, also if that fails.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::pki_types::CertificateDer;

thread_local! {
    /// Of the handshake that this thread polls: rustls shows a certificate that it refuses to the verifier alone, which all
    /// connections share.
    static PRESENTED: RefCell<Option<CertificateDer<'static>>> = const { RefCell::new(None) };
}

/// Called by the verifier with what a peer presents.
pub(super) fn note(certificate: &CertificateDer<'_>) {
    PRESENTED.set(Some(certificate.clone().into_owned()));
}

/// A handshake, with the certificate that was presented in it.
pub(crate) struct Presenting<F> {
    handshake: Pin<Box<F>>,
    presented: Option<CertificateDer<'static>>,
}

impl<F> Presenting<F> {
    pub(crate) fn new(handshake: F) -> Self {
        Self { handshake: Box::pin(handshake), presented: None }
    }
}

impl<F: Future> Future for Presenting<F> {
    type Output = (F::Output, Option<CertificateDer<'static>>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        PRESENTED.take();
        let polled = self.handshake.as_mut().poll(cx);
        if let Some(presented) = PRESENTED.take() {
            self.presented = Some(presented);
        }
        polled.map(|output| (output, self.presented.take()))
    }
}
