#include "cuda/nccl_config.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace eplb::cuda {
namespace {

constexpr int32_t kMaxChannels = 64;  // NCCL's MAXCHANNELS

// A plan (one kernel) holds (4096 - 32) / 16 = 254 work batches; an operation on c channels takes c
// of them. What does not fit starts a second kernel after the first, and ranks that cut their
// groups at different operations can wait for each other for ever. One send and one receive always
// fit.
constexpr int32_t kPlanBatches = (4096 - 32) / 16;
static_assert(2 * kMaxChannels <= kPlanBatches);

// Fields are only ever added at the end, so that an older version's structure is a prefix.
size_t SizeIn(int version) {
  if (version < 22500) return offsetof(ncclConfig_t, trafficClass);
  if (version < 22700) return offsetof(ncclConfig_t, commName);
  if (version < 22800) return offsetof(ncclConfig_t, nChannelsPerNetPeer);
  return sizeof(ncclConfig_t);
}

}  // namespace

absl::Status CheckNcclOptions(const NcclOptions& options) {
  if (options.num_ranks < 1 || options.rank < 0 || options.rank >= options.num_ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("NCCL rank ", options.rank, " of ", options.num_ranks));
  }
  if (options.max_ctas < 1 || options.max_ctas > kMaxChannels) {
    return absl::InvalidArgumentError(absl::StrCat("NCCL with at most ", options.max_ctas,
                                                   " CTAs, it knows 1 to ", kMaxChannels));
  }
  if (options.channels_per_net_peer < 1 || options.channels_per_net_peer > kMaxChannels) {
    return absl::InvalidArgumentError(absl::StrCat("NCCL with ", options.channels_per_net_peer,
                                                   " channels a network peer, it knows 1 to ",
                                                   kMaxChannels));
  }
  if (options.traffic_class < -1) {
    return absl::InvalidArgumentError(
        absl::StrCat("NCCL with traffic class ", options.traffic_class, ", -1 leaves it to NCCL"));
  }
  return absl::OkStatus();
}

ncclConfig_t MakeNcclConfig(const NcclOptions& options, int version) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.size = SizeIn(version);
  config.version = static_cast<unsigned int>(std::min(version, NCCL_VERSION_CODE));
  config.blocking = 0;
  config.maxCTAs = options.max_ctas;
  config.splitShare = 0;
  if (version >= 22500 && options.traffic_class >= 0) config.trafficClass = options.traffic_class;
  if (version >= 22700) {
    config.commName = options.name.c_str();
    config.shrinkShare = 0;
  }
  if (version >= 22800) config.nChannelsPerNetPeer = options.channels_per_net_peer;
  return config;
}

}  // namespace eplb::cuda
