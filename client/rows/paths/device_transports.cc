// The candidates of a rank with rows in GPU memory: peer, peer+nccl, nccl and host.
#include "client/rows/paths/device_transports.h"

#include <fcntl.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <cuda_runtime_api.h>

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/rows/control/socket.h"
#include "client/rows/link_setup.h"
#include "client/rows/link_transport.h"
#include "client/rows/paths/bounce_path.h"
#include "client/rows/paths/fallback_path.h"
#include "client/rows/paths/hybrid_path.h"
#include "client/rows/paths/peer_path.h"
#include "client/rows/transport_trial.h"
#include "cuda/copy.h"
#include "cuda/count.h"
#include "cuda/peer_arena.h"
#include "cuda/route.h"
#include "cuda/runtime.h"

#ifdef EPLB_WITH_NCCL
#include "client/rows/paths/nccl_path.h"
#include "cuda/nccl_library.h"
#endif

namespace eplb {
namespace {

// Blocks of a kernel beside training steps; without a limit it would take 4 blocks of every
// multiprocessor. Reads of the GPU's own memory return within 0.8 us, so NVLink's 450 GB/s need
// 360 KB of reads in flight; writes into the peer are not waited for. A block has 256 threads with
// 4 loads of 16 bytes each, 16 KiB, so 32 blocks have 512 KiB. Computed, not measured.
constexpr int32_t kBlocksBesideSteps = 32;

// max_blocks: see StreamRowQueueOptions.
absl::StatusOr<std::unique_ptr<cuda::RowQueue>> MakeDeviceQueue(int32_t device,
                                                                int32_t max_blocks = 0) {
  return cuda::MakeStreamRowQueue(
      {.device = device, .max_blocks = max_blocks, .high_priority = false});
}

// Adds advice for a trainer whose GPU has no room for staging or buffers.
absl::Status WithAdvice(absl::Status status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return ResourceExhausted(status.message(),
                           "; give memory back before registration (torch.cuda.empty_cache()), or "
                           "lower layers_per_chunk");
}

std::vector<PeerLink> TakeLinks(LinkParts& parts) {
  std::vector<PeerLink> links;
  for (LinkParts::Peer& peer : parts.peers) links.push_back(std::move(peer.link));
  return links;
}

// Makes a candidate that prepares `Parts` on this rank, and connects with them once all ranks have
// prepared. prepare: () -> StatusOr<Parts>. connect: (Parts, AllGather) -> StatusOr<Transport>.
template <class Prepare, class Connect>
TransportCandidate MakeCandidate(const char* name, Prepare prepare, Connect connect) {
  using Parts = typename std::invoke_result_t<Prepare>::value_type;
  auto parts = std::make_shared<std::optional<Parts>>();
  return {.name = name,
          .prepare =
              [prepare, parts] {
                absl::StatusOr<Parts> made = prepare();
                if (!made.ok()) return WithAdvice(made.status());
                parts->emplace(*std::move(made));
                return absl::OkStatus();
              },
          .connect =
              [connect, parts](const AllGather& all_gather) {
                return connect(*std::exchange(*parts, std::nullopt), all_gather);
              }};
}

// ---- the path after another one has failed ----

absl::StatusOr<std::unique_ptr<RowPath>> MakeBounceInto(std::span<std::byte> staging,
                                                        int32_t device) {
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<cuda::RowQueue> down, MakeDeviceQueue(device));
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<cuda::RowQueue> up, MakeDeviceQueue(device));
  return MakeBouncePathInto(staging, std::move(down), std::move(up));
}

std::unique_ptr<RowPath> WithBounce(std::unique_ptr<RowPath> path, const RowMoverOptions& options) {
  return MakeFallbackPath(
      {.first = std::move(path),
       .make_second = [device = *options.memory.device](
                          std::span<std::byte> staging) { return MakeBounceInto(staging, device); },
       .on_note = options.transport.on_note});
}

// ---- peer ----

struct Arenas {
  explicit Arenas(cuda::PeerArena arena) : own(std::move(arena)) {}
  cuda::PeerArena own;
  std::vector<cuda::PeerArena> mapped;
};

// Staging that can be mapped by the ranks of this host.
absl::StatusOr<std::shared_ptr<Arenas>> MakeArenas(const RowMoverOptions& options) {
  EPLB_ASSIGN_OR_RETURN(
      cuda::PeerArena own,
      cuda::PeerArena::Make(
          *options.memory.device, options.transport.staging_bytes,
          options.use_ipc_handles ? cuda::PeerArenaKind::kIpcHandle : cuda::PeerArenaKind::kBest));
  return std::make_shared<Arenas>(std::move(own));
}

// Connections with all peers.
absl::StatusOr<LinkParts> LinkArenas(const TransportOptions& options, const Arenas& arenas,
                                     const AllGather& all_gather) {
  const cuda::PeerArenaOffer offer = arenas.own.offer();
  // Peers of this host are those that hand a descriptor over a unix socket, so one is sent even if
  // the arena itself is handed over as text.
  const Fd nothing(offer.descriptor >= 0 ? -1 : open("/dev/null", O_RDONLY | O_CLOEXEC));
  const SharedStaging shared{.descriptor = offer.descriptor >= 0 ? offer.descriptor : nothing.get(),
                             .text = offer.text};
  return SetUpLinks(options, shared, all_gather);
}

// Maps the staging of those `ranks` that are peers, and returns the path to them. errors:
// FailedPrecondition naming the first rank that cannot be mapped.
absl::StatusOr<std::unique_ptr<RowPath>> MakePeerPathTo(const std::vector<RankId>& ranks,
                                                        const std::vector<LinkParts::Peer>& peers,
                                                        const RowMoverOptions& options,
                                                        const std::shared_ptr<Arenas>& arenas) {
  const int32_t device = *options.memory.device;
  std::map<RankId, std::span<std::byte>> mapped;
  for (const LinkParts::Peer& peer : peers) {
    const RankId rank = peer.link.rank();
    if (std::ranges::find(ranks, rank) == ranks.end()) continue;
    if (!peer.descriptor.ok()) {
      return FailedPrecondition("staging of rank ", rank.value, ": ",
                                peer.descriptor.status().message());
    }
    absl::StatusOr<cuda::PeerArena> arena = cuda::PeerArena::Map(
        device, peer.staging_text, peer.descriptor->get(), peer.link.staging_bytes());
    if (!arena.ok()) {
      return FailedPrecondition("staging of rank ", rank.value, ": ", arena.status().message());
    }
    mapped[rank] = arena->bytes();
    arenas->mapped.push_back(*std::move(arena));
  }
  const int32_t max_blocks = options.beside_steps ? kBlocksBesideSteps : 0;
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<cuda::RowQueue> queue, MakeDeviceQueue(device, max_blocks));
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<cuda::RowQueue> check_queue,
                        MakeDeviceQueue(device, max_blocks));
  return MakePeerPath({.owner = arenas,
                       .staging = arenas->own.bytes(),
                       .mapped = std::move(mapped),
                       .queue = std::move(queue),
                       .check_queue = std::move(check_queue)});
}

// Makes the transport over such a path and sends a row between each two of `ranks`. A device may
// report that it reaches another one, and still lose the bytes that it writes there.
absl::StatusOr<std::unique_ptr<Transport>> TryPath(std::unique_ptr<RowPath> path, LinkParts& parts,
                                                   const std::vector<RankId>& ranks,
                                                   const RowMoverOptions& options) {
  std::unique_ptr<Transport> transport =
      MakeLinkTransport(options.transport.rank, options.transport.max_row_bytes, TakeLinks(parts),
                        WithBounce(std::move(path), options));
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<cuda::RowQueue> rows,
                        MakeDeviceQueue(*options.memory.device));
  EPLB_RETURN_IF_ERROR(TryPairs(*transport, *rows,
                                {.self = options.transport.rank,
                                 .ranks = ranks,
                                 .deadline = MonotonicNow() + options.transport.connect_timeout}));
  return transport;
}

absl::StatusOr<std::unique_ptr<Transport>> ConnectPeer(const RowMoverOptions& options,
                                                       const std::shared_ptr<Arenas>& arenas,
                                                       const AllGather& all_gather) {
  EPLB_ASSIGN_OR_RETURN(LinkParts parts, LinkArenas(options.transport, *arenas, all_gather));
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<RowPath> path,
                        MakePeerPathTo(options.ep_group, parts.peers, options, arenas));
  return TryPath(std::move(path), parts, options.ep_group, options);
}

TransportCandidate PeerCandidate(const RowMoverOptions& options) {
  return MakeCandidate(
      "peer", [options] { return MakeArenas(options); },
      [options](const std::shared_ptr<Arenas>& arenas, const AllGather& all_gather) {
        return ConnectPeer(options, arenas, all_gather);
      });
}

// ---- nccl ----

#ifdef EPLB_WITH_NCCL
absl::StatusOr<const cuda::NcclLibrary*> LoadNccl(const TransportOptions& options) {
  EPLB_RETURN_IF_ERROR(CheckNcclEnvironment());
  EPLB_ASSIGN_OR_RETURN(const cuda::NcclLibrary* const library, cuda::NcclLibrary::Load());
  if (options.on_note && !library->note().empty()) options.on_note(library->note());
  return library;
}

// staging, is_registrable, without_rows: see NcclPathParts.
absl::StatusOr<std::unique_ptr<RowPath>> MakeNcclPathOn(const RowMoverOptions& options,
                                                        std::optional<cuda::RowBuffer> staging = {},
                                                        bool is_registrable = false,
                                                        std::vector<RankId> without_rows = {}) {
  EPLB_ASSIGN_OR_RETURN(const cuda::NcclLibrary* const library, LoadNccl(options.transport));
  NcclPathParts parts{.library = library,
                      .settings = options.nccl,
                      .device = options.memory.device,
                      .self = options.transport.rank,
                      .ranks = options.ep_group,
                      .staging_bytes = options.transport.staging_bytes,
                      .staging = std::move(staging),
                      .is_staging_registrable = is_registrable,
                      .without_rows = std::move(without_rows),
                      .on_note = options.transport.on_note};
  EPLB_ASSIGN_OR_RETURN(parts.pack_queue, MakeDeviceQueue(*options.memory.device));
  EPLB_ASSIGN_OR_RETURN(parts.group_queue, MakeDeviceQueue(*options.memory.device));
  EPLB_ASSIGN_OR_RETURN(parts.check_queue, MakeDeviceQueue(*options.memory.device));
  return MakeNcclPath(std::move(parts));
}

absl::StatusOr<std::unique_ptr<Transport>> ConnectNccl(const TransportOptions& options,
                                                       std::unique_ptr<RowPath> path,
                                                       const AllGather& all_gather) {
  EPLB_ASSIGN_OR_RETURN(LinkParts parts, SetUpLinks(options, SharedStaging{}, all_gather));
  std::unique_ptr<Transport> transport =
      MakeLinkTransport(options.rank, options.max_row_bytes, TakeLinks(parts), std::move(path));
  EPLB_RETURN_IF_ERROR(BringUp(*transport, MonotonicNow() + options.connect_timeout));
  return transport;
}

TransportCandidate NcclCandidate(const RowMoverOptions& options) {
  return MakeCandidate(
      "nccl", [options] { return MakeNcclPathOn(options); },
      [options](std::unique_ptr<RowPath> path, const AllGather& all_gather) {
        return ConnectNccl(options.transport, WithBounce(std::move(path), options), all_gather);
      });
}

// ---- peer+nccl ----

// Memory that is allocated before the ranks connect, so that all ranks learn of one without room.
struct HybridStart {
  std::shared_ptr<Arenas> arenas;
  std::unique_ptr<RowPath> nccl;
};

// Returns staging inside arenas, which live as long as the buffer. A caller that never destroys the
// buffer keeps the arenas as well.
cuda::RowBuffer StagingOf(std::shared_ptr<Arenas> arenas) {
  const std::span<std::byte> bytes = arenas->own.bytes();
  auto* const kept = new std::shared_ptr<Arenas>(std::move(arenas));
  // The owner is not the staging's address, because that is null for an empty staging and would not
  // be deleted.
  return {.owner = {reinterpret_cast<std::byte*>(kept), [kept](std::byte*) { delete kept; }},
          .bytes = bytes};
}

absl::StatusOr<HybridStart> PrepareHybrid(const RowMoverOptions& options,
                                          const std::vector<RankId>& same_host) {
  HybridStart start;
  EPLB_ASSIGN_OR_RETURN(start.arenas, MakeArenas(options));
  EPLB_ASSIGN_OR_RETURN(start.nccl, MakeNcclPathOn(options, StagingOf(start.arenas),
                                                   start.arenas->own.is_registrable(), same_host));
  return start;
}

absl::StatusOr<std::unique_ptr<Transport>> ConnectHybrid(const RowMoverOptions& options,
                                                         const std::vector<RankId>& same_host,
                                                         HybridStart start,
                                                         const AllGather& all_gather) {
  EPLB_ASSIGN_OR_RETURN(LinkParts parts, LinkArenas(options.transport, *start.arenas, all_gather));
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<RowPath> peer,
                        MakePeerPathTo(same_host, parts.peers, options, start.arenas));
  HybridPathParts both{.peer = std::move(peer),
                       .nccl = std::move(start.nccl),
                       .same_host = {same_host.begin(), same_host.end()}};
  // The same post brings the communicator up.
  return TryPath(MakeHybridPath(std::move(both)), parts, same_host, options);
}

TransportCandidate HybridCandidate(const RowMoverOptions& options,
                                   const std::vector<RankId>& same_host) {
  return MakeCandidate(
      kHybridName, [options, same_host] { return PrepareHybrid(options, same_host); },
      [options, same_host](HybridStart start, const AllGather& all_gather) {
        return ConnectHybrid(options, same_host, std::move(start), all_gather);
      });
}
#else
TransportCandidate WithoutNccl(const char* name) {
  return {.name = name,
          .prepare = [] { return FailedPrecondition("built without nccl.h"); },
          .connect = nullptr};
}
TransportCandidate NcclCandidate(const RowMoverOptions&) { return WithoutNccl("nccl"); }
TransportCandidate HybridCandidate(const RowMoverOptions&, const std::vector<RankId>&) {
  return WithoutNccl(kHybridName);
}
#endif

// ---- host ----

absl::StatusOr<BounceParts> ReserveBounceOn(const RowMoverOptions& options) {
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<cuda::RowQueue> down,
                        MakeDeviceQueue(*options.memory.device));
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<cuda::RowQueue> up,
                        MakeDeviceQueue(*options.memory.device));
  return ReserveBounce(options.transport.staging_bytes, std::move(down), std::move(up));
}

TransportCandidate BounceCandidate(const RowMoverOptions& options) {
  return MakeCandidate(
      "host", [options] { return ReserveBounceOn(options); },
      [options](BounceParts parts, const AllGather& all_gather) {
        return MakeBounceTransport(options.transport, std::move(parts), all_gather);
      });
}

}  // namespace

absl::Status CheckKernelsOf(const RowMemory& memory) {
  EPLB_ASSIGN_OR_RETURN(const cuda::DeviceGuard guard, cuda::DeviceGuard::Make(*memory.device));
  return cuda::LoadCopyKernels();
}

void TellDevice(int32_t device, TransportReport& report) {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device) == cudaSuccess) {
    report.device_name = properties.name;
  } else {
    (void)cudaGetLastError();  // a missing name is no error of this library
  }
#ifdef EPLB_WITH_NCCL
  if (!UsesNccl(report.name)) return;
  const absl::StatusOr<const cuda::NcclLibrary*> library = cuda::NcclLibrary::Load();
  if (!library.ok()) return;
  report.nccl_version = (*library)->version_text();
  report.nccl_library = (*library)->path();
#endif
}

std::vector<TransportCandidate> DeviceCandidates(const RowMoverOptions& options,
                                                 const std::vector<RankId>& same_host) {
  return {PeerCandidate(options), HybridCandidate(options, same_host), NcclCandidate(options),
          BounceCandidate(options)};
}

absl::Status LoadTokenKernels(const RowMemory& memory) {
  if (!memory.device.has_value()) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const cuda::DeviceGuard guard, cuda::DeviceGuard::Make(*memory.device));
  EPLB_RETURN_IF_ERROR(cuda::LoadRouteKernels());
  return cuda::LoadCountKernels();
}

absl::StatusOr<std::unique_ptr<cuda::RowQueue>> MakeQueueFor(const RowMemory& memory) {
  if (!memory.device.has_value()) return cuda::MakeHostRowQueue();
  return MakeDeviceQueue(*memory.device);
}

}  // namespace eplb
