// Ranges and defaults of NCCL settings, and the variables that change them.
#include "client/rows/paths/nccl_settings.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <optional>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb {
namespace {

constexpr char kTrafficClass[] = "EPLB_NCCL_TRAFFIC_CLASS";
constexpr char kBlocking[] = "NCCL_COMM_BLOCKING";

// Variables by name, without those that naturally differ between hosts, such as NCCL_IB_HCA and
// NCCL_SOCKET_IFNAME.
constexpr auto kVariables = std::to_array<const char*>({"CUDA_DEVICE_MAX_CONNECTIONS",
                                                        "EPLB_NCCL_PATH",
                                                        kTrafficClass,
                                                        "NCCL_BUFFSIZE",
                                                        kBlocking,
                                                        "NCCL_CROSS_NIC",
                                                        "NCCL_IB_MERGE_NICS",
                                                        "NCCL_IB_QPS_PER_CONNECTION",
                                                        "NCCL_IB_SL",
                                                        "NCCL_IB_SPLIT_DATA_ON_QPS",
                                                        "NCCL_IB_TC",
                                                        "NCCL_LAUNCH_ORDER_IMPLICIT",
                                                        "NCCL_MAX_CTAS",
                                                        "NCCL_MAX_NCHANNELS",
                                                        "NCCL_MAX_P2P_NCHANNELS",
                                                        "NCCL_MIN_CTAS",
                                                        "NCCL_MIN_NCHANNELS",
                                                        "NCCL_MIN_P2P_NCHANNELS",
                                                        "NCCL_NCHANNELS_PER_NET_PEER",
                                                        "NCCL_NET",
                                                        "NCCL_NET_GDR_LEVEL",
                                                        "NCCL_P2P_DISABLE",
                                                        "NCCL_P2P_NET_CHUNKSIZE",
                                                        "NCCL_P2P_NVL_CHUNKSIZE",
                                                        "NCCL_P2P_PCI_CHUNKSIZE",
                                                        "NCCL_PXN_DISABLE",
                                                        "NCCL_RUNTIME_CONNECT"});

constexpr int32_t kMaxChannels = 64;  // most channels of NCCL
constexpr int64_t kUsualPiece = int64_t{16} << 20;
constexpr int32_t kWantedChannels = 8;  // channels of a piece on one node
constexpr int64_t kLeastPiece = int64_t{64} << 10;
constexpr int64_t kLargestPiece = int64_t{1} << 30;
constexpr int64_t kPieceAlignment = 64;  // alignment of rows in staging
constexpr int32_t kMaxWarmUpRanks = 4096;

std::optional<std::string> Variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): no thread sets it
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

absl::Status CheckRange(const char* field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return InvalidInput(field, ": ", value, ", expected ", least, "..", most);
}

// NCCL's steps of a buffer, by what it moves them over.
constexpr int64_t kNvlinkChunk = int64_t{512} << 10;
constexpr int64_t kNetChunk = int64_t{128} << 10;

int64_t DivideUp(int64_t number, int64_t by) { return (number + by - 1) / by; }

int32_t PowerOfTwoFrom(int32_t number) {
  return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(number)));
}

}  // namespace

NcclRanks NcclRanksOf(std::span<const RankId> ep_group, std::span<const std::string> boot_ids) {
  std::set<std::string> nodes;
  for (const RankId rank : ep_group) {
    const auto at = static_cast<size_t>(rank.value);
    nodes.insert(at < boot_ids.size() ? boot_ids[at] : "");
  }
  return {.num_ranks = static_cast<int32_t>(ep_group.size()),
          .on_one_node = nodes.size() == 1 && !nodes.begin()->empty()};
}

int32_t NcclChannels(int64_t bytes, const NcclRanks& ranks, const NcclSettings& settings) {
  if (bytes <= 0) return 1;
  const int32_t all = PowerOfTwoFrom(settings.max_ctas);
  const int32_t most =
      ranks.on_one_node ? all : std::min(all, PowerOfTwoFrom(settings.channels_per_net_peer));
  int32_t least = most;
  while (int64_t{least} * ranks.num_ranks > all && least > 1) least /= 2;
  const int64_t chunk = ranks.on_one_node ? kNvlinkChunk : kNetChunk;
  const int64_t least_part = ranks.on_one_node ? chunk / 8 : chunk / 2;
  const int64_t largest_part = ranks.on_one_node ? chunk * 32 : chunk;
  auto channels = static_cast<int32_t>(std::min<int64_t>(least, DivideUp(bytes, least_part)));
  while (std::max(least_part, DivideUp(bytes, channels)) > largest_part && channels <= most / 2) {
    channels *= 2;
  }
  return channels;
}

NcclSettings WithPieceBytes(NcclSettings settings, const NcclRanks& ranks) {
  if (settings.piece_bytes != 0) return settings;
  settings.piece_bytes = kUsualPiece;
  if (!ranks.on_one_node) return settings;
  const int32_t wanted = std::min(kWantedChannels, PowerOfTwoFrom(settings.max_ctas));
  // One step more than a power of two: at the power itself a part is not too large yet.
  for (int64_t piece = kUsualPiece;
       NcclChannels(settings.piece_bytes, ranks, settings) < wanted && piece < kLargestPiece;
       piece *= 2) {
    settings.piece_bytes = piece + kLeastPiece;
  }
  return settings;
}

absl::Status CheckNcclSettings(const NcclSettings& settings) {
  absl::Status status = CheckRange("nccl.max_ctas", settings.max_ctas, 1, kMaxChannels);
  status.Update(
      CheckRange("nccl.channels_per_net_peer", settings.channels_per_net_peer, 1, kMaxChannels));
  if (settings.piece_bytes != 0 &&
      !CheckRange("", settings.piece_bytes, kLeastPiece, kLargestPiece).ok()) {
    status.Update(InvalidInput("nccl.piece_bytes: ", settings.piece_bytes, ", expected 0 or ",
                               kLeastPiece, "..", kLargestPiece));
  }
  status.Update(CheckRange("nccl.warm_up_ranks", settings.warm_up_ranks, 0, kMaxWarmUpRanks));
  if (!status.ok()) return status;
  if (settings.traffic_class < -1) {
    return InvalidInput("nccl.traffic_class: ", settings.traffic_class, ", expected -1 or more");
  }
  if (settings.piece_bytes % kPieceAlignment != 0) {
    return InvalidInput("nccl.piece_bytes: ", settings.piece_bytes, ", expected a multiple of ",
                        kPieceAlignment);
  }
  return absl::OkStatus();
}

absl::StatusOr<NcclSettings> WithNcclEnvironment(NcclSettings settings) {
  EPLB_RETURN_IF_ERROR(CheckNcclSettings(settings));
  const std::optional<std::string> text = Variable(kTrafficClass);
  if (settings.traffic_class != -1 || !text.has_value() || text->empty()) return settings;
  if (!absl::SimpleAtoi(*text, &settings.traffic_class) || settings.traffic_class < 0) {
    return InvalidInput(kTrafficClass, ": \"", *text, "\", expected a number from 0 on");
  }
  return settings;
}

NamedTexts TellNcclSettings(const NcclSettings& settings) {
  return {
      {"channels_per_net_peer", absl::StrCat(settings.channels_per_net_peer)},
      {"max_ctas", absl::StrCat(settings.max_ctas)},
      {"piece_bytes", settings.piece_bytes == 0 ? "default" : absl::StrCat(settings.piece_bytes)},
      {"traffic_class",
       settings.traffic_class < 0 ? "default" : absl::StrCat(settings.traffic_class)},
      {"warm_up_ranks", absl::StrCat(settings.warm_up_ranks)}};
}

absl::Status CheckNcclEnvironment() {
  // This variable overrides a communicator's own setting. NCCL's calls then return only when all
  // ranks have called, and no deadline holds.
  const std::optional<std::string> blocking = Variable(kBlocking);
  if (!blocking.has_value() || blocking->empty() || blocking == "0") return absl::OkStatus();
  return FailedPrecondition(kBlocking, "=", *blocking,
                            " lets NCCL wait without an end for a rank that is absent; unset it");
}

NamedTexts TellNcclEnvironment() {
  NamedTexts set;
  for (const char* name : kVariables) {
    if (std::optional<std::string> value = Variable(name))
      set.emplace_back(name, *std::move(value));
  }
  return set;
}

}  // namespace eplb
