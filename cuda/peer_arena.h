// Device memory that other ranks of the host write into: staging that their GPUs reach, over NVLink
// where there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace eplb::cuda {

// Offer of a rank's arena to its peers: one line of text, and a descriptor if the memory is handed
// over as one.
struct PeerArenaOffer {
  std::string text;
  int descriptor = -1;  // descriptor of the arena, which keeps it open
};

// How an arena can be handed over.
enum class PeerArenaKind {
  kBest,       // by descriptor if driver and container allow it, otherwise by handle
  kIpcHandle,  // by CUDA's IPC handle everywhere
};

// Our own arena, or a peer's that is mapped here. Freed or unmapped with it, on any thread. Memory
// that was handed over as a descriptor lives on for the peers that map it. With an IPC handle CUDA
// leaves undefined what a peer then finds: there the peers unmap it first, or write nothing any
// more and end soon. Threads: one caller.
class PeerArena {
 public:
  // Memory of `device`, as a POSIX descriptor of the driver's virtual memory management; of
  // cudaMalloc with an IPC handle where that is not to be had, e.g. in a container without the
  // capability, rounded up to 2 MiB. 64-byte aligned, filled with zeros. errors: FailedPrecondition
  // when the device cannot be used, ResourceExhausted.
  static absl::StatusOr<PeerArena> Make(int32_t device, int64_t num_bytes,
                                        PeerArenaKind kind = PeerArenaKind::kBest);
  // A peer's arena as `device` reaches it; `descriptor` as it came with the text, else -1. An arena
  // of this very process is only pointed to: it must outlive the mapping. errors:
  // FailedPrecondition when the two devices do not reach each other's memory, or the text is not of
  // this version or not of `num_bytes`; Internal from CUDA.
  static absl::StatusOr<PeerArena> Map(int32_t device, const std::string& text, int descriptor,
                                       int64_t num_bytes);

  PeerArena(PeerArena&&) noexcept;
  PeerArena& operator=(PeerArena&&) noexcept;
  ~PeerArena();

  std::span<std::byte> bytes() const;
  // True if NCCL can register the memory: it is virtual memory that network cards reach.
  bool is_registrable() const;
  // REQUIRES: of Make.
  PeerArenaOffer offer() const;

 private:
  struct Impl;
  explicit PeerArena(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace eplb::cuda
