// Which transport carries a job's rows: the first of several that every rank can use.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "client/rows/control/control_channel.h"
#include "client/rows/paths/nccl_settings.h"
#include "client/rows/row_memory.h"
#include "client/rows/transport.h"
#include "cuda/row_queue.h"
#include "placement/ids.h"

namespace eplb {

// One way to carry rows. `prepare` is local; `connect` is collective and called only when all ranks
// have prepared.
struct TransportCandidate {
  std::string name;
  std::function<absl::Status()> prepare;
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(const AllGather&)> connect;
};

struct TransportChoice {
  std::unique_ptr<Transport> transport;
  std::string fallback_reason;  // why those before it are not used; empty: it is the first
};

// The first candidate that every rank prepares and connects; one that some rank cannot use is told
// through on_note with the reasons, dropped on all ranks and destroyed before the next is prepared.
// Collective: two all-gathers a candidate besides its own. errors: FailedPrecondition with what was
// wrong with each.
absl::StatusOr<TransportChoice> FirstUsable(std::vector<TransportCandidate> candidates,
                                            const TransportOptions& options,
                                            const AllGather& all_gather);

// Report to operators about the transport of this rank's rows.
struct TransportReport {
  std::string name;
  std::string fallback_reason;
  std::optional<int32_t> device;  // absent: host memory
  std::string device_name;
  std::string nccl_version;  // empty unless the transport uses NCCL
  std::string nccl_library;
  NamedTexts settings;  // ours where the transport uses NCCL, then the environment's
};

// How rows move: who carries them between ranks and who copies them on this one.
struct RowMover {
  std::unique_ptr<Transport> transport;
  std::unique_ptr<cuda::RowQueue> queue = nullptr;
  TransportReport report = {};
};

struct RowMoverOptions {
  TransportOptions transport;
  // "host", "peer", "nccl", "peer+nccl"; "auto": for host memory host, for a GPU's the first usable
  // of AutoTransports.
  std::string name = "auto";
  RowMemory memory;
  std::vector<RankId> ep_group;  // ranks among which rows move, rising, with our own
  // Name of this rank's host, equal on ranks that reach each other's GPUs. Empty: BootId().
  std::string host = {};
  // peer: staging goes by CUDA's IPC handle also where a descriptor would do.
  bool use_ipc_handles = false;
  // peer: rows move while training steps run, so the kernels leave them most multiprocessors.
  bool beside_steps = false;
  NcclSettings nccl;  // with the environment's; piece_bytes may be open
};

// Host and device of a rank.
struct RankPlace {
  std::string host;      // equal on ranks that share one; empty: one of its own
  RankId ep_group = {};  // its lowest rank
};

// Returns the transports that "auto" tries for rows in GPU memory, best first. places: those of all
// ranks of the job, so that all ranks try the same.
std::vector<std::string> AutoTransports(std::span<const RankPlace> places);

// Those of `ep_group` that run on the host of `rank`, rising, with its own.
std::vector<RankId> RanksOfItsHost(RankId rank, std::span<const RankId> ep_group,
                                   std::span<const RankPlace> places);

// True if the transport sends rows by NCCL, all or some.
bool UsesNccl(std::string_view transport);

// Collective. errors: as FirstUsable; InvalidArgument for a name that does not go with the memory;
// FailedPrecondition where a rank's GPU is of an architecture that this build has no kernels for.
absl::StatusOr<RowMover> MakeRowMover(const RowMoverOptions& given, const AllGather& all_gather);

}  // namespace eplb
