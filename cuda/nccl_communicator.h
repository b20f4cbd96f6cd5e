// An NCCL communicator of our own, never the training framework's: what hangs in it is ended with
// ncclCommAbort, and training goes on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <nccl.h>

#include "cuda/nccl_library.h"
#include "cuda/row_queue.h"

namespace eplb::cuda {

inline constexpr size_t kNcclIdBytes = 128;
using NcclId = std::array<std::byte, kNcclIdBytes>;

// Drawn on one rank and given to all. errors: Internal from NCCL.
absl::StatusOr<NcclId> MakeNcclId(const NcclLibrary& library);

struct NcclOptions {
  int32_t rank = 0;
  int32_t num_ranks = 1;
  // On at most 16 channels, a group of one send and one receive takes 2 * 16 work batches. One
  // kernel plan holds 254, so the group is never cut in two (see nccl_communicator.cc).
  int32_t max_ctas = 16;
  int32_t channels_per_net_peer = 8;  // NCCL's default is 2, and 1 in large jobs
  int32_t traffic_class = -1;  // -1: NCCL's; lower than training's where the fabric has classes
  // In NCCL's logs. This and the two before are left out where the loaded version does not know
  // them.
  std::string name = "eplb";
};

// One direction of a group.
struct NcclSend {
  int32_t to = 0;
  std::span<const std::byte> bytes;
};
struct NcclReceive {
  int32_t from = 0;
  std::span<std::byte> bytes;
};

// Threads: one caller, with the communicator's device current. Nothing here waits: what takes time
// is asked for with Poll.
class NcclCommunicator {
 public:
  // Begins to connect all ranks; Poll says when they are. The library outlives it. errors:
  // InvalidArgument; Internal from NCCL.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Begin(const NcclLibrary& library,
                                                                 const NcclId& id,
                                                                 const NcclOptions& options);
  // Aborts: a communicator whose work is over and whose peers may be gone has no better end.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // True if NCCL has taken the last call, so that the next may follow: the ranks are connected, or
  // the group is on its stream, which shows when the bytes have moved. errors: Unavailable if a
  // peer is lost, Internal; both with NCCL's own words. After an error only Abort may follow.
  absl::StatusOr<bool> Poll();
  // One group: at most one send and one receive, both of at least one byte and with another rank,
  // in order with `stream`; without any it does nothing. REQUIRES: Poll said true since the last
  // call. errors: InvalidArgument; FailedPrecondition when the call before is under way or has
  // failed; Unavailable and Internal as from Poll.
  absl::Status SendReceive(const std::optional<NcclSend>& send,
                           const std::optional<NcclReceive>& receive, void* stream);
  // Lets kernels and network cards work in `memory` itself, in place of NCCL's buffers, by
  // ncclCommRegister: ncclCommWindowRegister is a call of all ranks with one size. It stays
  // where it is until the abort, which ends the registration too. On a pair within a node both ends
  // must have registered theirs, or neither: NCCL does not compare. REQUIRES: as SendReceive.
  // errors: FailedPrecondition where this library cannot or NCCL_LOCAL_REGISTER=0 forbids it;
  // Internal; the communicator works as before.
  absl::Status Register(std::span<std::byte> memory);
  // Takes all of it back. REQUIRES: nothing was sent or received in that memory.
  void Deregister();
  // Ends everything that is under way, also kernels that wait for a peer. OK: none of our writes
  // can still land. errors: Internal when NCCL could not and a group was begun. cost: NCCL waits
  // for its kernels and threads to see the end, usually less than a second, more where the driver
  // or the network card answers late; there is no bound.
  absl::Status Abort();

 private:
  struct Impl;
  explicit NcclCommunicator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Memory of `device` as registration needs it. errors: FailedPrecondition where the library has
// none to give; InvalidArgument for a negative size; Unavailable and Internal from NCCL, Internal
// also where the device has no room: NCCL names no reason.
absl::StatusOr<RowBuffer> AllocateByNccl(const NcclLibrary& library, int32_t device,
                                         int64_t num_bytes);

// Settings of a communicator, translated for the version of NCCL that is loaded.

// A configuration as a program compiled for `version` would write it: the fields that came later
// are undefined and outside its size, so an older library reads nothing that it does not know.
// Never blocking, and nothing shared with other communicators, for an abort would reach them.
// Points into `options`, which outlives the communicator.
ncclConfig_t MakeNcclConfig(const NcclOptions& options, int version);

}  // namespace eplb::cuda
