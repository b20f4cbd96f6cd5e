#include "tests/client/fault_points/rows.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "base/status_macros.h"

#ifdef EPLB_FAKE_NCCL
#include "base/monotonic_clock.h"
#include "client/rows/link_setup.h"
#include "client/rows/link_transport.h"
#include "client/rows/paths/bounce_path.h"
#include "client/rows/paths/fallback_path.h"
#include "client/rows/paths/nccl_path.h"
#include "client/rows/transport_trial.h"
#endif

namespace eplb {
namespace {

constexpr int64_t kStagingBytes = int64_t{1} << 17;

#ifdef EPLB_FAKE_NCCL
absl::StatusOr<std::unique_ptr<Transport>> MakeNcclRows(const JobSpec& spec,
                                                        const TransportOptions& options,
                                                        const AllGather& all_gather) {
  EPLB_ASSIGN_OR_RETURN(const cuda::NcclLibrary* const library,
                        cuda::NcclLibrary::Load(EPLB_FAKE_NCCL));
  EPLB_ASSIGN_OR_RETURN(LinkParts parts, SetUpLinks(options, SharedStaging{}, all_gather));
  std::vector<PeerLink> links;
  for (LinkParts::Peer& peer : parts.peers) links.push_back(std::move(peer.link));
  std::vector<RankId> ranks;
  for (int32_t r = 0; r < options.world_size; ++r) ranks.push_back(RankId{r});
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<RowPath> path,
                        MakeNcclPath({.library = library,
                                      .settings = {.piece_bytes = 2048},
                                      .device = std::nullopt,
                                      .self = options.rank,
                                      .ranks = std::move(ranks),
                                      .pack_queue = cuda::MakeHostRowQueue(),
                                      .group_queue = cuda::MakeHostRowQueue(),
                                      .check_queue = cuda::MakeHostRowQueue(),
                                      .staging_bytes = options.staging_bytes,
                                      .abort_timeout = spec.abort_timeout}));
  const auto make_second = [](std::span<std::byte> staging) {
    return MakeBouncePathInto(staging, cuda::MakeHostRowQueue(), cuda::MakeHostRowQueue());
  };
  path = MakeFallbackPath({.first = std::move(path), .make_second = make_second});
  std::unique_ptr<Transport> transport =
      MakeLinkTransport(options.rank, options.max_row_bytes, std::move(links), std::move(path));
  // One thread only has been in this process until the communicator begins.
  if (!spec.nccl_log.empty()) setenv("EPLB_FAKE_NCCL_LOG", spec.nccl_log.c_str(), 1);
  setenv("EPLB_FAKE_NCCL_FAULTS", spec.fault.nccl.c_str(), 1);
  EPLB_RETURN_IF_ERROR(BringUp(*transport, MonotonicNow() + options.connect_timeout));
  if (!spec.fault.nccl_stays) unsetenv("EPLB_FAKE_NCCL_FAULTS");
  return transport;
}
#else
absl::StatusOr<std::unique_ptr<Transport>> MakeNcclRows(const JobSpec&, const TransportOptions&,
                                                        const AllGather&) {
  return absl::FailedPreconditionError("built without nccl.h");
}
#endif

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeRows(const JobSpec& spec, int32_t rank,
                                                    const std::string& secret,
                                                    const AllGather& all_gather) {
  const TransportOptions options{.rank = RankId{rank},
                                 .world_size = spec.world_size,
                                 .staging_bytes = kStagingBytes,
                                 .secret = secret,
                                 .use_shared_memory = spec.rows == Rows::kShared,
                                 .connect_timeout = absl::Seconds(30)};
  return spec.rows == Rows::kNccl ? MakeNcclRows(spec, options, all_gather)
                                  : MakeHostTransport(options, all_gather);
}

}  // namespace eplb
