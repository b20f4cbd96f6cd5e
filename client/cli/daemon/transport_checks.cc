#include "client/cli/daemon/transport_checks.h"

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "client/cli/daemon/rank_names.h"
#include "client/cli/text.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {
namespace {

using Result = Check::Result;
using Ranks = std::vector<const v1::RankStatus*>;

constexpr char kNotSet[] = "not set";
constexpr char kQueuePairs[] = "NCCL_IB_QPS_PER_CONNECTION";

Check Make(const v1::JobStatus& job, std::string name, Result result, std::string detail) {
  return {
      .scope = job.job(), .name = std::move(name), .result = result, .detail = std::move(detail)};
}

// "A on rank 1; B on ranks 0, 2". Empty when all ranks say the same.
template <class Tell>
std::string Differences(const Ranks& ranks, Tell tell) {
  std::map<std::string, std::vector<uint32_t>> who;
  for (const v1::RankStatus* rank : ranks) who[tell(*rank)].push_back(rank->rank());
  if (who.size() < 2) return "";
  return absl::StrJoin(who, "; ", [](std::string* out, const auto& said) {
    absl::StrAppend(out, said.first, " on ", NameRanks(said.second));
  });
}

std::string SettingOf(const v1::RankStatus& rank, const std::string& name) {
  for (const auto& setting : rank.transport().settings()) {
    if (setting.name() == name) return setting.value();
  }
  return kNotSet;
}

Check CheckName(const v1::JobStatus& job, const Ranks& told) {
  if (told.empty()) {
    return Make(job, "transport", Result::kOk, "no rank has told what carries its rows");
  }
  if (const std::string names =
          Differences(told, [](const auto& rank) { return rank.transport().name(); });
      !names.empty()) {
    return Make(job, "transport", Result::kWarning, absl::StrCat("ranks differ: ", names));
  }
  const v1::TransportInfo& first = told.front()->transport();
  std::string detail =
      absl::StrCat(first.name(), " on ", Counted(static_cast<int64_t>(told.size()), "rank"));
  if (!first.device_name().empty()) absl::StrAppend(&detail, ", ", first.device_name());
  const bool slow = first.name() == "host" && first.has_device();
  if (slow) {
    absl::StrAppend(&detail, ": rows in GPU memory go through host memory, which is the slow way; ",
                    first.passed_over().empty()
                        ? "the trainer asked for transport host, auto takes the fastest"
                        : first.passed_over());
  } else if (!first.passed_over().empty()) {
    absl::StrAppend(&detail, "; ", first.passed_over());
  }
  return Make(job, "transport", slow ? Result::kWarning : Result::kOk, std::move(detail));
}

// What to do about settings that are right but may cost speed.
std::vector<std::string> NotesOn(const v1::JobStatus& job, const v1::RankStatus& rank) {
  std::vector<std::string> notes;
  const auto is = [&rank](const char* name, const char* value) {
    return SettingOf(rank, name) == value;
  };
  const bool sockets = is("NCCL_NET", "Socket");
  if (is("NCCL_P2P_DISABLE", "1")) {
    notes.push_back("NCCL_P2P_DISABLE=1 keeps rows off NVLink");
  }
  if (sockets) notes.push_back("NCCL_NET=Socket sends rows between nodes over TCP");
  if (!is("traffic_class", kNotSet) && !is("traffic_class", "default")) {
    for (const char* name : {"NCCL_IB_TC", "NCCL_IB_SL"}) {
      if (!is(name, kNotSet)) {
        notes.push_back(
            absl::StrCat(name, " overrides our traffic class ", SettingOf(rank, "traffic_class")));
      }
    }
  }
  const bool one_pair = is(kQueuePairs, kNotSet) || is(kQueuePairs, "1");
  if (job.shape().num_nodes() > 1 && !sockets && one_pair) {
    notes.push_back(
        absl::StrCat("a connection has one queue pair; where cards have two ports or "
                     "the fabric several paths, ",
                     kQueuePairs, "=2..4 with NCCL_IB_SPLIT_DATA_ON_QPS=1 uses more of it"));
  }
  return notes;
}

Check CheckNccl(const v1::JobStatus& job, const Ranks& ranks) {
  std::vector<std::string> found;
  const std::string versions = Differences(ranks, [](const auto& rank) {
    return absl::StrCat("NCCL ", rank.transport().nccl_version());
  });
  if (!versions.empty()) {
    found.push_back(absl::StrCat("versions differ: ", versions, "; set EPLB_NCCL_PATH"));
  }
  std::set<std::string> names;
  for (const v1::RankStatus* rank : ranks) {
    for (const auto& setting : rank->transport().settings()) names.insert(setting.name());
  }
  std::vector<std::string> settings;
  for (const std::string& name : names) {
    settings.push_back(absl::StrCat(name, "=", SettingOf(*ranks.front(), name)));
    if (name == "EPLB_NCCL_PATH") continue;  // hosts may keep it in different places
    const std::string values =
        Differences(ranks, [&name](const auto& rank) { return SettingOf(rank, name); });
    if (!values.empty()) found.push_back(absl::StrCat(name, " differs: ", values));
  }
  if (!found.empty()) return Make(job, "nccl", Result::kWarning, absl::StrJoin(found, "; "));
  const v1::TransportInfo& first = ranks.front()->transport();
  std::string detail = absl::StrCat("NCCL ", first.nccl_version(), " of ", first.nccl_library(),
                                    ": ", absl::StrJoin(settings, " "));
  for (const std::string& note : NotesOn(job, *ranks.front())) {
    absl::StrAppend(&detail, "; note: ", note);
  }
  return Make(job, "nccl", Result::kOk, std::move(detail));
}

}  // namespace

std::vector<Check> CheckTransport(const v1::JobStatus& job) {
  Ranks told;
  Ranks with_nccl;
  for (const v1::RankStatus& rank : job.ranks()) {
    if (!rank.transport().name().empty()) told.push_back(&rank);
    if (rank.transport().name() == "nccl") with_nccl.push_back(&rank);
  }
  std::vector<Check> checks = {CheckName(job, told)};
  if (!with_nccl.empty()) checks.push_back(CheckNccl(job, with_nccl));
  return checks;
}

}  // namespace eplb::cli
