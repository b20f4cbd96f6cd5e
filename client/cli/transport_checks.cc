// The checks of `eplbctl doctor` about the transport of expert rows.
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "client/cli/health_checks.h"
#include "client/cli/job_text.h"
#include "client/cli/text.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {

namespace {

using Result = Check::Result;
using Ranks = std::vector<const v1::RankStatus*>;

constexpr char kQueuePairs[] = "NCCL_IB_QPS_PER_CONNECTION";

bool UsesNccl(const std::string& transport) {
  return transport == "nccl" || transport == "peer+nccl";
}

// "A on rank 1; B on ranks 0, 2". Empty if all ranks report the same.
template <class Tell>
std::string Differences(const Ranks& ranks, Tell tell) {
  std::map<std::string, std::vector<uint32_t>> who;
  for (const v1::RankStatus* rank : ranks) who[tell(*rank)].push_back(rank->rank());
  if (who.size() < 2) return "";
  return absl::StrJoin(who, "; ", [&ranks](std::string* out, const auto& said) {
    absl::StrAppend(out, said.first, " on ", NameRanks(said.second, ranks.size()));
  });
}

struct TransportSetting {
  std::string value;
  bool is_default = false;  // not set
};

// Ranks report only variables that are set.
TransportSetting SettingOf(const v1::RankStatus& rank, const std::string& name) {
  for (const auto& setting : rank.transport().settings()) {
    if (setting.name() == name) return {.value = setting.value()};
  }
  for (const NcclVariable& variable : kNcclVariables) {
    if (variable.name == name) return {.value = variable.value_when_unset, .is_default = true};
  }
  return {.value = kNotSet, .is_default = true};
}

std::string Shown(const TransportSetting& setting) {
  const bool has_default = setting.is_default && setting.value != kNotSet;
  return absl::StrCat(setting.value, has_default ? " (default)" : "");
}

// EPLB's own settings first, then NCCL's variables, each in the order of names.
std::vector<std::string> SettingNames(const Ranks& ranks) {
  std::set<std::pair<bool, std::string>> names;
  const auto add = [&names](const std::string& name) {
    names.emplace(!name.empty() && absl::ascii_isupper(static_cast<unsigned char>(name.front())),
                  name);
  };
  for (const NcclVariable& variable : kNcclVariables) add(variable.name);
  for (const v1::RankStatus* rank : ranks) {
    for (const auto& setting : rank->transport().settings()) add(setting.name());
  }
  std::vector<std::string> sorted;
  sorted.reserve(names.size());
  for (const auto& [is_variable, name] : names) sorted.push_back(name);
  return sorted;
}

Verdict CheckName(const Ranks& told) {
  if (told.empty()) return Passed("no rank has reported its transport");
  if (const std::string names =
          Differences(told, [](const auto& rank) { return rank.transport().name(); });
      !names.empty()) {
    return Warning("ranks differ: ", names);
  }
  const v1::TransportInfo& first = told.front()->transport();
  std::string detail = absl::StrCat(first.name(), " on ", Counted(told.size(), "rank"));
  if (!first.device_name().empty()) absl::StrAppend(&detail, ", ", first.device_name());
  const bool slow = first.name() == "host" && first.has_device();
  if (slow) {
    absl::StrAppend(&detail, ": rows in GPU memory go through host memory, which is the slow way; ",
                    first.fallback_reason().empty()
                        ? "the trainer asked for transport host, auto takes the fastest"
                        : first.fallback_reason());
  } else if (!first.fallback_reason().empty()) {
    absl::StrAppend(&detail, "; ", first.fallback_reason());
  }
  return Verdict{slow ? Result::kWarning : Result::kOk, detail};
}

// Advice about a rank's settings that are valid but may cost speed.
std::vector<std::string> NotesOn(const v1::JobStatus& job, const v1::RankStatus& rank) {
  std::vector<std::string> notes;
  const auto is = [&rank](const char* name, const char* value) {
    return SettingOf(rank, name).value == value;
  };
  const bool sockets = is("NCCL_NET", "Socket");
  if (is("NCCL_P2P_DISABLE", "1") && rank.transport().name() == "nccl") {
    notes.push_back("NCCL_P2P_DISABLE=1 keeps rows off NVLink");
  }
  if (sockets) notes.push_back("NCCL_NET=Socket sends rows between nodes over TCP");
  if (!is("traffic_class", kNotSet) && !is("traffic_class", "default")) {
    for (const char* name : {"NCCL_IB_TC", "NCCL_IB_SL"}) {
      if (!is(name, kNotSet)) {
        notes.push_back(absl::StrCat(name, " overrides our traffic class ",
                                     SettingOf(rank, "traffic_class").value));
      }
    }
  }
  for (const auto& [variable, setting] :
       {std::pair("NCCL_MAX_CTAS", "max_ctas"), std::pair("NCCL_MIN_CTAS", "max_ctas"),
        std::pair("NCCL_NCHANNELS_PER_NET_PEER", "channels_per_net_peer")}) {
    if (is(variable, kNotSet)) continue;
    notes.push_back(absl::StrCat(variable, "=", SettingOf(rank, variable).value, " overrides ",
                                 setting, "=", SettingOf(rank, setting).value));
  }
  if (job.shape().num_nodes() > 1 && !sockets && is(kQueuePairs, "1")) {
    notes.push_back(absl::StrCat(
        "a connection has one queue pair; where cards have two ports or the fabric several paths, ",
        kQueuePairs, "=2..4 with NCCL_IB_SPLIT_DATA_ON_QPS=1 uses more of it"));
  }
  return notes;
}

// Each note once, even if many ranks give it.
std::vector<std::string> AllNotes(const v1::JobStatus& job, const Ranks& ranks) {
  std::vector<std::string> notes;
  for (const v1::RankStatus* rank : ranks) {
    for (std::string& note : NotesOn(job, *rank)) {
      if (std::ranges::find(notes, note) == notes.end()) {
        notes.push_back(std::move(note));
      }
    }
  }
  return notes;
}

// The differences of library and settings between ranks.
std::vector<std::string> NcclDifferences(const Ranks& ranks,
                                         const std::vector<std::string>& names) {
  std::vector<std::string> found;
  const std::string versions = Differences(ranks, [](const auto& rank) {
    return absl::StrCat("NCCL ", rank.transport().nccl_version());
  });
  if (!versions.empty()) {
    found.push_back(absl::StrCat("versions differ: ", versions,
                                 "; load the same NCCL on all ranks (EPLB_NCCL_PATH only counts "
                                 "where the process has loaded none)"));
  }
  for (const std::string& name : names) {
    if (name == "EPLB_NCCL_PATH") continue;  // hosts may keep it in different places
    // A rank that sets the default value does not differ.
    if (Differences(ranks, [&name](const auto& rank) {
          return SettingOf(rank, name).value;
        }).empty()) {
      continue;
    }
    found.push_back(absl::StrCat(name, " differs: ", Differences(ranks, [&name](const auto& rank) {
                                   return Shown(SettingOf(rank, name));
                                 })));
  }
  return found;
}

Verdict CheckNccl(const v1::JobStatus& job, const Ranks& ranks) {
  const v1::RankStatus& first = *ranks.front();
  const std::vector<std::string> names = SettingNames(ranks);
  std::vector<std::string> settings;
  settings.reserve(names.size());
  for (const std::string& name : names) {
    settings.push_back(absl::StrCat(name, "=", Shown(SettingOf(first, name))));
  }
  std::vector<std::string> detail = NcclDifferences(ranks, names);
  const bool differ = !detail.empty();
  detail.push_back(absl::StrCat(differ ? absl::StrCat("rank ", first.rank(), " has ") : "", "NCCL ",
                                first.transport().nccl_version(), " of ",
                                first.transport().nccl_library(), ": ",
                                absl::StrJoin(settings, ", ")));
  for (const std::string& note : AllNotes(job, ranks)) {
    detail.push_back(absl::StrCat("note: ", note));
  }
  return Verdict{differ ? Result::kWarning : Result::kOk, absl::StrJoin(detail, "; ")};
}

}  // namespace

std::vector<Check> CheckTransport(const v1::JobStatus& job) {
  Ranks told;
  Ranks with_nccl;
  for (const v1::RankStatus& rank : job.ranks()) {
    if (!rank.transport().name().empty()) told.push_back(&rank);
    if (UsesNccl(rank.transport().name())) with_nccl.push_back(&rank);
  }
  std::vector<Check> checks;
  const auto add = [&](const char* name, const Verdict& verdict) {
    checks.push_back({job.job(), name, verdict.result, verdict.detail});
  };
  add("transport", CheckName(told));
  if (!with_nccl.empty()) add("nccl", CheckNccl(job, with_nccl));
  return checks;
}

}  // namespace eplb::cli
