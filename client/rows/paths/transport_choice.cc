#include "client/rows/paths/transport_choice.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/rows/control/meeting.h"
#include "client/rows/control/socket.h"
#include "client/rows/paths/device_transports.h"
#include "client/rows/paths/hybrid_path.h"
#include "client/rows/staging.h"

namespace eplb {
namespace {

// Reasons that are told; a job that fails on all ranks has few different ones.
constexpr size_t kMaxReasons = 4;

// "rank 2: no memory; ranks 0, 1: no way to rank 2". A rank that only repeats another's reason,
// with that one's name before it, says nothing new.
std::string JoinReasons(const std::vector<std::string>& reasons) {
  std::set<std::string> told;
  for (size_t rank = 0; rank < reasons.size(); ++rank) {
    told.insert(absl::StrCat("rank ", rank, ": ", reasons[rank]));
  }
  std::map<std::string, std::vector<RankId>> ranks;  // by reason
  std::vector<std::string> order;
  for (size_t rank = 0; rank < reasons.size(); ++rank) {
    const std::string& reason = reasons[rank];
    if (reason.empty() || told.contains(reason)) continue;
    std::vector<RankId>& with_it = ranks[reason];
    if (with_it.empty()) order.push_back(reason);
    with_it.push_back(RankId{static_cast<int32_t>(rank)});
  }
  std::string text;
  for (size_t i = 0; i < std::min(order.size(), kMaxReasons); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : "; ", NameRanks(ranks[order[i]]), ": ", order[i]);
  }
  if (order.size() > kMaxReasons) {
    absl::StrAppend(&text, "; and ", order.size() - kMaxReasons, " other reasons");
  }
  return text;
}

// ok when all ranks say ok. errors: FailedPrecondition with the reasons of those that do not.
absl::Status Agree(const absl::Status& own, int32_t world_size, const AllGather& all_gather) {
  EPLB_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                        GatherAll("transport", own.ok() ? "" : absl::StrCat("!", own.message()),
                                  world_size, all_gather));
  std::vector<std::string> reasons;
  reasons.reserve(all.size());
  for (const std::string& answer : all) reasons.push_back(answer.empty() ? "" : answer.substr(1));
  const std::string text = JoinReasons(reasons);
  return text.empty() ? absl::OkStatus() : FailedPrecondition(text);
}

std::string TextOf(const RankPlace& place) {
  return absl::StrCat(place.ep_group.value, " ", place.host);
}

absl::StatusOr<RankPlace> PlaceFrom(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  RankPlace place{.host = parts.second};
  if (!absl::SimpleAtoi(parts.first, &place.ep_group.value)) {
    return FailedPrecondition("it does not report where it runs (another version?)");
  }
  return place;
}

// Gathers the places of all ranks. Collective.
absl::StatusOr<std::vector<RankPlace>> GatherPlaces(const RowMoverOptions& options,
                                                    const AllGather& all_gather) {
  const RankPlace own{.host = options.host.empty() ? BootId() : options.host,
                      .ep_group = options.ep_group.front()};
  EPLB_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      GatherAll("transport", TextOf(own), options.transport.world_size, all_gather));
  std::vector<RankPlace> places;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    absl::StatusOr<RankPlace> place = PlaceFrom(texts[rank]);
    if (!place.ok()) return FailedPrecondition("rank ", rank, ": ", place.status().message());
    places.push_back(*std::move(place));
  }
  return places;
}

// Returns the NCCL settings for the hosts on which the EP group's ranks run.
NcclSettings SettingsOfEpGroup(const RowMoverOptions& options, std::span<const RankPlace> places) {
  std::vector<std::string> hosts;
  hosts.reserve(places.size());
  for (const RankPlace& place : places) hosts.push_back(place.host);
  return WithPieceBytes(options.nccl, NcclRanksOf(options.ep_group, hosts));
}

// places: only for memory of a device.
absl::StatusOr<std::vector<TransportCandidate>> CandidatesOf(const RowMoverOptions& options,
                                                             std::span<const RankPlace> places) {
  const bool any = options.name == "auto";
  if (!options.memory.device.has_value()) {
    if (!any && options.name != "host") {
      return InvalidInput("transport ", options.name,
                          " needs expert tensors in GPU memory, these lie in host memory");
    }
    return std::vector<TransportCandidate>{
        {.name = "host",
         .prepare = [] { return absl::OkStatus(); },
         .connect =
             [transport = options.transport](const AllGather& all_gather) {
               return MakeHostTransport(transport, all_gather);
             }}};
  }
  const std::vector<std::string> names =
      any ? AutoTransports(places) : std::vector<std::string>{options.name};
  std::vector<TransportCandidate> candidates;
  for (TransportCandidate& candidate : DeviceCandidates(
           options, RanksOfItsHost(options.transport.rank, options.ep_group, places))) {
    const bool wanted = std::ranges::find(names, candidate.name) != names.end();
    if (wanted) candidates.push_back(std::move(candidate));
  }
  return candidates;
}

}  // namespace

std::vector<std::string> AutoTransports(std::span<const RankPlace> places) {
  struct EpGroup {
    int32_t num_ranks = 0;
    std::map<std::string, int32_t> ranks_of_host;
  };
  std::map<RankId, EpGroup> groups;
  for (const RankPlace& place : places) {
    EpGroup& group = groups[place.ep_group];
    ++group.num_ranks;
    if (!place.host.empty()) ++group.ranks_of_host[place.host];
  }
  bool each_on_one_host = true;
  bool some_share = false;
  for (const auto& [first_rank, group] : groups) {
    int32_t most = 1;
    for (const auto& [host, num_ranks] : group.ranks_of_host) most = std::max(most, num_ranks);
    each_on_one_host = each_on_one_host && most == group.num_ranks;
    some_share = some_share || most > 1;
  }
  if (each_on_one_host) return {"peer", "nccl", "host"};
  if (some_share) return {kHybridName, "nccl", "host"};
  return {"nccl", "host"};
}

std::vector<RankId> RanksOfItsHost(RankId rank, std::span<const RankId> ep_group,
                                   std::span<const RankPlace> places) {
  const auto host_of = [places](RankId other) {
    const auto at = static_cast<size_t>(other.value);
    return at < places.size() ? places[at].host : std::string();
  };
  const std::string own = host_of(rank);
  std::vector<RankId> ranks;
  for (const RankId other : ep_group) {
    const bool shares = !own.empty() && host_of(other) == own;
    if (shares || other == rank) ranks.push_back(other);
  }
  return ranks;
}

bool UsesNccl(std::string_view transport) {
  return transport == "nccl" || transport == kHybridName;
}

absl::StatusOr<TransportChoice> FirstUsable(std::vector<TransportCandidate> candidates,
                                            const TransportOptions& options,
                                            const AllGather& all_gather) {
  std::vector<std::string> failures;
  for (size_t i = 0; i < candidates.size(); ++i) {
    // With what it has prepared, which may be as large as all staging.
    const TransportCandidate candidate = std::exchange(candidates[i], {});
    absl::Status status = Agree(candidate.prepare(), options.world_size, all_gather);
    if (status.ok()) {
      absl::StatusOr<std::unique_ptr<Transport>> transport = candidate.connect(all_gather);
      status = Agree(transport.status(), options.world_size, all_gather);
      if (status.ok()) {
        return TransportChoice{.transport = *std::move(transport),
                               .fallback_reason = absl::StrJoin(failures, "; ")};
      }
    }
    failures.push_back(absl::StrCat("transport ", candidate.name,
                                    " cannot be used: ", std::string(status.message())));
    const bool is_last = i + 1 == candidates.size();  // then the error says it
    if (options.on_note && !is_last) options.on_note(failures.back());
  }
  return FailedPrecondition(absl::StrJoin(failures, "; "));
}

absl::StatusOr<RowMover> MakeRowMover(const RowMoverOptions& given, const AllGather& all_gather) {
  RowMoverOptions options = given;
  std::vector<RankPlace> places;
  if (options.memory.device.has_value()) {
    EPLB_RETURN_IF_ERROR(
        Agree(CheckKernelsOf(options.memory), options.transport.world_size, all_gather));
    EPLB_ASSIGN_OR_RETURN(places, GatherPlaces(options, all_gather));
    options.nccl = SettingsOfEpGroup(options, places);
  }
  EPLB_ASSIGN_OR_RETURN(std::vector<TransportCandidate> candidates, CandidatesOf(options, places));
  EPLB_ASSIGN_OR_RETURN(TransportChoice choice,
                        FirstUsable(std::move(candidates), options.transport, all_gather));
  RowMover mover{.transport = std::move(choice.transport)};
  mover.report.name = std::string(mover.transport->name());
  mover.report.fallback_reason = std::move(choice.fallback_reason);
  mover.report.device = options.memory.device;
  if (options.name == "auto" && !options.memory.no_device.empty()) {
    mover.report.fallback_reason =
        absl::StrCat("rows move in host memory: ", options.memory.no_device);
    if (options.transport.on_note) options.transport.on_note(mover.report.fallback_reason);
  }
  EPLB_ASSIGN_OR_RETURN(mover.queue, MakeQueueFor(options.memory));
  if (UsesNccl(mover.report.name)) mover.report.settings = TellNcclSettings(options.nccl);
  for (auto& variable : TellNcclEnvironment()) {
    mover.report.settings.push_back(std::move(variable));
  }
  if (options.memory.device.has_value()) TellDevice(*options.memory.device, mover.report);
  return mover;
}

}  // namespace eplb
