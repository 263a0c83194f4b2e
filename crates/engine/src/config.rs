//! What limits an engine, and who it is.

use rkey_link::NodeId;

/// An engine's limits and identity.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// This device.
    pub node: NodeId,
    /// Maximum number of queue pairs.
    pub max_qps: u32,
    /// Maximum number of completion queues.
    pub max_cqs: u32,
    /// Maximum number of shared receive queues.
    pub max_srqs: u32,
    /// Maximum entries of a completion queue.
    pub max_cq_depth: u32,
    /// Maximum entries of a send, receive or shared receive queue.
    pub max_queue_depth: u32,
    /// Maximum scatter/gather entries of a work request.
    pub max_sge: u32,
    /// Maximum inline data of a work request, in bytes.
    pub max_inline: u32,
    /// Whether the engine asks the device ([`Event::PeerSilent`](crate::Event::PeerSilent)) before it gives up on a silent peer.
    pub asks_about_silence: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            node: NodeId::default(),
            max_qps: 1 << 16,
            max_cqs: 1 << 16,
            max_srqs: 1 << 14,
            max_cq_depth: 1 << 22,
            max_queue_depth: 1 << 15,
            max_sge: 32,
            max_inline: 1024,
            asks_about_silence: false,
        }
    }
}
