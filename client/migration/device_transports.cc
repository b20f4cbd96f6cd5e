#include "client/migration/device_transports.h"

#include <fcntl.h>

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include <cuda_runtime_api.h>

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/control/socket.h"
#include "client/migration/bounce_path.h"
#include "client/migration/host_path.h"
#include "client/migration/link_setup.h"
#include "client/migration/link_transport.h"
#include "client/migration/peer_path.h"
#include "cuda/copy.h"
#include "cuda/peer_arena.h"
#include "cuda/runtime.h"

#ifdef EPLB_WITH_NCCL
#include "client/migration/nccl_path.h"
#include "cuda/nccl_library.h"
#endif

namespace eplb {
namespace {

absl::StatusOr<std::unique_ptr<cuda::RowQueue>> MakeDeviceQueue(int32_t device) {
  return cuda::MakeStreamRowQueue({.device = device, .max_blocks = 0, .high_priority = false});
}

// What a trainer can do where the GPU has no room for staging or buffers.
absl::Status WithAdvice(absl::Status status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return absl::ResourceExhaustedError(
      absl::StrCat(status.message(),
                   "; give memory back before registration (torch.cuda.empty_cache()), or lower "
                   "layers_per_chunk"));
}

std::vector<PeerLink> TakeLinks(LinkParts& parts) {
  std::vector<PeerLink> links;
  for (LinkParts::Peer& peer : parts.peers) links.push_back(std::move(peer.link));
  return links;
}

// ---- what carries rows once another path has been given up ----

absl::StatusOr<std::unique_ptr<RowPath>> MakeBounceInto(std::span<std::byte> staging,
                                                        int32_t device) {
  EPLB_ASSIGN_OR_RETURN(StagingArena arena,
                        StagingArena::Make(static_cast<int64_t>(staging.size())));
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<cuda::RowQueue> queue, MakeDeviceQueue(device));
  return MakeBouncePathInto(staging, MakeHostPath(std::move(arena), {}), std::move(queue));
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

absl::StatusOr<std::unique_ptr<Transport>> ConnectPeer(const RowMoverOptions& options,
                                                       const std::shared_ptr<Arenas>& arenas,
                                                       const AllGather& all_gather) {
  const cuda::PeerArenaOffer offer = arenas->own.offer();
  // Peers of this host are told by what they hand over on a unix socket, also where the arena
  // itself goes as text.
  const Fd nothing(offer.descriptor >= 0 ? -1 : open("/dev/null", O_RDONLY | O_CLOEXEC));
  const SharedStaging shared{.descriptor = offer.descriptor >= 0 ? offer.descriptor : nothing.get(),
                             .text = offer.text};
  EPLB_ASSIGN_OR_RETURN(LinkParts parts, SetUpLinks(options.transport, shared, all_gather));
  std::map<RankId, std::span<std::byte>> mapped;
  for (LinkParts::Peer& peer : parts.peers) {
    const RankId rank = peer.link.rank();
    if (!peer.descriptor.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("staging of rank ", rank.value, ": ", peer.descriptor.status().message()));
    }
    absl::StatusOr<cuda::PeerArena> arena =
        cuda::PeerArena::Map(*options.memory.device, peer.staging_text, peer.descriptor->get(),
                             peer.link.staging_bytes());
    if (!arena.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("staging of rank ", rank.value, ": ", arena.status().message()));
    }
    mapped[rank] = arena->bytes();
    arenas->mapped.push_back(*std::move(arena));
  }
  const int32_t device = *options.memory.device;
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<cuda::RowQueue> queue, MakeDeviceQueue(device));
  std::unique_ptr<Transport> transport =
      MakeLinkTransport(options.transport.rank, options.transport.max_row_bytes, TakeLinks(parts),
                        WithBounce(MakePeerPath({.owner = arenas,
                                                 .staging = arenas->own.bytes(),
                                                 .mapped = std::move(mapped),
                                                 .queue = std::move(queue)}),
                                   options));
  // A device may report that it reaches another and lose what it writes there.
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<cuda::RowQueue> rows, MakeDeviceQueue(device));
  EPLB_RETURN_IF_ERROR(TryPairs(*transport, *rows,
                                {.self = options.transport.rank,
                                 .ranks = options.ep_group,
                                 .deadline = MonotonicNow() + options.transport.connect_timeout}));
  return transport;
}

TransportCandidate PeerCandidate(const RowMoverOptions& options) {
  auto arenas = std::make_shared<std::shared_ptr<Arenas>>();
  return {.name = "peer",
          .prepare =
              [options, arenas] {
                absl::StatusOr<cuda::PeerArena> own =
                    cuda::PeerArena::Make(*options.memory.device, options.transport.staging_bytes,
                                          options.use_ipc_handles ? cuda::PeerArenaKind::kIpcHandle
                                                                  : cuda::PeerArenaKind::kBest);
                EPLB_RETURN_IF_ERROR(WithAdvice(own.status()));
                *arenas = std::make_shared<Arenas>(*std::move(own));
                return absl::OkStatus();
              },
          .connect =
              [options, arenas](const AllGather& all_gather) {
                return ConnectPeer(options, std::exchange(*arenas, nullptr), all_gather);
              }};
}

// ---- nccl ----

#ifdef EPLB_WITH_NCCL
absl::StatusOr<const cuda::NcclLibrary*> LoadNccl(const TransportOptions& options) {
  EPLB_RETURN_IF_ERROR(CheckNcclEnvironment());
  EPLB_ASSIGN_OR_RETURN(const cuda::NcclLibrary* const library, cuda::NcclLibrary::Load());
  if (options.on_note && !library->note().empty()) options.on_note(library->note());
  return library;
}

absl::StatusOr<std::unique_ptr<RowPath>> MakeNcclPathOn(const RowMoverOptions& options) {
  EPLB_ASSIGN_OR_RETURN(const cuda::NcclLibrary* const library, LoadNccl(options.transport));
  NcclPathParts parts{.library = library,
                      .settings = options.nccl,
                      .device = options.memory.device,
                      .self = options.transport.rank,
                      .ranks = options.ep_group,
                      .pack_queue = nullptr,
                      .group_queue = nullptr,
                      .check_queue = nullptr,
                      .staging_bytes = options.transport.staging_bytes,
                      .on_note = options.transport.on_note};
  EPLB_ASSIGN_OR_RETURN(parts.pack_queue, MakeDeviceQueue(*options.memory.device));
  EPLB_ASSIGN_OR_RETURN(parts.group_queue, MakeDeviceQueue(*options.memory.device));
  EPLB_ASSIGN_OR_RETURN(parts.check_queue, MakeDeviceQueue(*options.memory.device));
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<RowPath> nccl, MakeNcclPath(std::move(parts)));
  return WithBounce(std::move(nccl), options);
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
  auto path = std::make_shared<std::unique_ptr<RowPath>>();
  return {.name = "nccl",
          .prepare =
              [options, path] {
                absl::StatusOr<std::unique_ptr<RowPath>> made = MakeNcclPathOn(options);
                EPLB_RETURN_IF_ERROR(WithAdvice(made.status()));
                *path = *std::move(made);
                return absl::OkStatus();
              },
          .connect =
              [options, path](const AllGather& all_gather) {
                return ConnectNccl(options.transport, std::move(*path), all_gather);
              }};
}
#else
TransportCandidate NcclCandidate(const RowMoverOptions&) {
  return {.name = "nccl",
          .prepare = [] { return absl::FailedPreconditionError("built without nccl.h"); },
          .connect = nullptr};
}
#endif

// ---- host ----

absl::StatusOr<std::unique_ptr<Transport>> ConnectBounce(const RowMoverOptions& options,
                                                         std::unique_ptr<RowPath> path,
                                                         const AllGather& all_gather) {
  EPLB_ASSIGN_OR_RETURN(LinkParts parts,
                        SetUpLinks(options.transport, SharedStaging{}, all_gather));
  return MakeLinkTransport(options.transport.rank, options.transport.max_row_bytes,
                           TakeLinks(parts), std::move(path));
}

absl::StatusOr<std::unique_ptr<RowPath>> MakeBouncePathOn(const RowMoverOptions& options) {
  EPLB_ASSIGN_OR_RETURN(StagingArena arena, StagingArena::Make(options.transport.staging_bytes));
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<cuda::RowQueue> queue,
                        MakeDeviceQueue(*options.memory.device));
  return MakeBouncePath(MakeHostPath(std::move(arena), {}), std::move(queue));
}

TransportCandidate BounceCandidate(const RowMoverOptions& options) {
  auto path = std::make_shared<std::unique_ptr<RowPath>>();
  return {.name = "host",
          .prepare =
              [options, path] {
                absl::StatusOr<std::unique_ptr<RowPath>> made = MakeBouncePathOn(options);
                EPLB_RETURN_IF_ERROR(WithAdvice(made.status()));
                *path = *std::move(made);
                return absl::OkStatus();
              },
          .connect =
              [options, path](const AllGather& all_gather) {
                return ConnectBounce(options, std::move(*path), all_gather);
              }};
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
    (void)cudaGetLastError();  // a name that is not known is no error of ours
  }
#ifdef EPLB_WITH_NCCL
  if (report.name != "nccl") return;
  const absl::StatusOr<const cuda::NcclLibrary*> library = cuda::NcclLibrary::Load();
  if (!library.ok()) return;
  report.nccl_version = (*library)->version_text();
  report.nccl_library = (*library)->path();
#endif
}

std::vector<TransportCandidate> DeviceCandidates(const RowMoverOptions& options) {
  return {PeerCandidate(options), NcclCandidate(options), BounceCandidate(options)};
}

absl::StatusOr<std::unique_ptr<cuda::RowQueue>> MakeQueueFor(const RowMemory& memory) {
  if (!memory.device.has_value()) return cuda::MakeHostRowQueue();
  return MakeDeviceQueue(*memory.device);
}

}  // namespace eplb
