#include "client/start.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "client/options.h"

namespace eplb {
namespace {

constexpr int kProtocolVersion = 3;
constexpr size_t kMaxRanksNamed = 8;
constexpr char kError[] = "error";  // always the first line
constexpr char kExtra[] = "extra";  // separates what is compared from what is told

// Long values, such as a tensor's description, are cut in messages.
std::string Shown(const std::string& value) {
  constexpr size_t kShown = 200;
  return Clipped(value, kShown);
}

std::string Encode(const StartFields& fields) {
  std::string text;
  for (const auto& [name, value] : fields) {
    absl::StrAppend(&text, name, "=", absl::CEscape(value), "\n");
  }
  return text;
}

// errors: InvalidArgument for a line without '='.
absl::StatusOr<StartFields> Decode(const std::string& text) {
  StartFields fields;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const size_t equals = line.find('=');
    std::string value;
    if (equals == absl::string_view::npos || !absl::CUnescape(line.substr(equals + 1), &value)) {
      return InvalidInput("\"", Clipped({line.data(), line.size()}, 80), "\" is not field=value");
    }
    fields.emplace_back(std::string(line.substr(0, equals)), std::move(value));
  }
  return fields;
}

// One rank's blob, taken apart.
struct Said {
  std::string error;
  StartFields compared = {};
  StartFields extra = {};
};

absl::StatusOr<Said> Parse(const std::string& blob, size_t rank) {
  EPLB_ASSIGN_OR_RETURN(StartFields fields, Decode(blob));
  if (fields.empty() || fields.front().first != kError) {
    return InvalidInput("its message has no fields of a start");
  }
  Said said{.error = fields.front().second};
  const auto extra = std::find_if(fields.begin() + 1, fields.end(),
                                  [](const auto& field) { return field.first == kExtra; });
  if (extra == fields.end() || extra->second != absl::StrCat(rank)) {
    return InvalidInput("the all-gather put rank ",
                        extra == fields.end() ? "without a number" : extra->second, " there");
  }
  said.compared.assign(fields.begin() + 1, extra);
  said.extra.assign(extra + 1, fields.end());
  return said;
}

// i: the place at which most ranks have the field.
std::string ValueOf(const StartFields& fields, size_t i, const std::string& name) {
  if (i < fields.size() && fields[i].first == name) return fields[i].second;
  return FindField(fields, name).value_or("no such field");
}

}  // namespace

absl::StatusOr<std::vector<StartFields>> RunStartRound(const StartRound& round, int32_t rank,
                                                       int32_t world_size,
                                                       const AllGather& all_gather) {
  StartFields fields = {{kError, std::string(round.error.message())}};
  fields.insert(fields.end(), round.mine.begin(), round.mine.end());
  fields.emplace_back(kExtra, absl::StrCat(rank));
  fields.insert(fields.end(), round.extra.begin(), round.extra.end());
  const absl::StatusOr<std::vector<std::string>> blobs =
      GatherAll(round.what.c_str(), Encode(fields), world_size, all_gather);
  EPLB_RETURN_IF_ERROR(round.error);  // said to the others first, so that they stop too
  EPLB_RETURN_IF_ERROR(blobs.status());
  std::vector<StartFields> compared;
  std::vector<StartFields> extras;
  std::vector<RankId> ranks;
  for (size_t i = 0; i < blobs->size(); ++i) {
    absl::StatusOr<Said> said = Parse((*blobs)[i], i);
    if (!said.ok()) {
      return FailedPrecondition(
          round.what, ": rank ", i,
          " called another collective, or runs another version: ", said.status().message());
    }
    if (!said->error.empty()) {
      return FailedPrecondition(round.what, ": rank ", i, " cannot start: ", said->error);
    }
    compared.push_back(std::move(said->compared));
    extras.push_back(std::move(said->extra));
    ranks.push_back(RankId{static_cast<int32_t>(i)});
  }
  const size_t block = ranks.size() / static_cast<size_t>(round.pipeline_parallel_size);
  for (size_t first = 0; first < ranks.size(); first += block) {
    const std::string inside =
        block == ranks.size() ? "" : absl::StrCat(" inside pipeline stage ", first / block);
    EPLB_RETURN_IF_ERROR(
        CompareFields(round.what, std::span(ranks).subspan(first, block), compared, inside));
  }
  return extras;
}

absl::Status CompareFields(const std::string& what, std::span<const RankId> ranks,
                           std::span<const StartFields> sent, const std::string& inside) {
  const auto sent_by = [sent](RankId rank) -> const StartFields& {
    return sent[static_cast<size_t>(rank.value)];
  };
  size_t num_fields = 0;
  for (const RankId rank : ranks) num_fields = std::max(num_fields, sent_by(rank).size());
  for (size_t i = 0; i < num_fields; ++i) {
    const RankId named =
        *std::ranges::find_if(ranks, [&](RankId rank) { return i < sent_by(rank).size(); });
    const std::string& name = sent_by(named)[i].first;
    const std::string expected = ValueOf(sent_by(ranks.front()), i, name);
    std::vector<int32_t> others;
    std::string other;
    for (const RankId rank : ranks) {
      const std::string value = ValueOf(sent_by(rank), i, name);
      if (value == expected || (!others.empty() && value != other)) continue;
      other = value;
      others.push_back(rank.value);
    }
    if (others.empty()) continue;
    return FailedPrecondition(what, ": ", name, " differs", inside, ": rank ", ranks.front().value,
                              " has ", Shown(expected), ", ", ListRanks(others, kMaxRanksNamed),
                              others.size() == 1 ? " has " : " have ", Shown(other));
  }
  return absl::OkStatus();
}

StartFields FieldsOf(const ClientOptions& o, bool disabled) {
  return {{"protocol", absl::StrCat(kProtocolVersion)},
          {"library_version", kLibraryVersion},
          {"EPLB_DISABLE", disabled ? "1" : "0"},
          {"job", o.job},
          {"run_id", GivenLaunchId(o)},
          {"take_over", TakesOver(o) ? "1" : "0"},
          {"world_size", absl::StrCat(o.world_size)},
          {"num_layers", absl::StrCat(o.num_layers)},
          {"num_experts", absl::StrCat(o.num_experts)},
          {"num_slots", absl::StrCat(o.num_slots)},
          {"num_gpus", absl::StrCat(o.num_gpus)},
          {"num_nodes", absl::StrCat(o.num_nodes)},
          {"num_groups", absl::StrCat(o.num_groups)},
          {"pipeline_parallel_size", absl::StrCat(o.pipeline_parallel_size)},
          {"expert_tensor_parallel", absl::StrCat(o.expert_tensor_parallel)},
          {"first_step", absl::StrCat(o.first_step)},
          {"vote_every", absl::StrCat(o.vote_every)},
          {"report_every", absl::StrCat(o.report_every)},
          {"require_daemon", o.require_daemon ? "1" : "0"},
          {"reduce", o.reduce},
          {"split", o.split},
          {"layers_per_chunk", absl::StrCat(o.layers_per_chunk)},
          {"state_placement",
           o.state_placement == StatePlacement::kWithPrimary ? "with_primary" : "every_replica"},
          {"ahead", o.ahead ? "1" : "0"},
          {"transport", o.transport},
          // The ends of a transfer cut it into pieces alike. Whether a traffic class differs is the
          // fabric's matter.
          {"nccl", absl::StrCat("max_ctas ", o.nccl.max_ctas, ", channels_per_net_peer ",
                                o.nccl.channels_per_net_peer, ", piece_bytes ", o.nccl.piece_bytes,
                                ", warm_up_ranks ", o.nccl.warm_up_ranks)}};
}

absl::StatusOr<std::string> FindField(const StartFields& fields, std::string_view name) {
  for (const auto& [field, value] : fields) {
    if (field == name) return value;
  }
  return FailedPrecondition("start: rank 0 did not send ", std::string(name));
}

std::string PlacementBytes(const Placement& placement) {
  std::string bytes;
  for (const IndexMatrix* map : {&placement.physical_to_logical_map(), &placement.replica_rank()}) {
    bytes.append(reinterpret_cast<const char*>(map->data()),
                 static_cast<size_t>(map->size()) * sizeof(int32_t));
  }
  return bytes;
}

absl::StatusOr<Placement> PlacementFromBytes(const Topology& topology, std::string_view bytes) {
  IndexMatrix slots(topology.num_layers(), topology.num_slots());
  IndexMatrix ranks(topology.num_layers(), topology.num_slots());
  const size_t half = static_cast<size_t>(slots.size()) * sizeof(int32_t);
  if (bytes.size() != 2 * half) {
    return InvalidInput("a placement of ", bytes.size(), " bytes, expected ", 2 * half);
  }
  std::memcpy(slots.data(), bytes.data(), half);
  std::memcpy(ranks.data(), bytes.data() + half, half);
  return Placement::FromSlotsAndRanks(topology, slots, ranks);
}

absl::StatusOr<std::string> BroadcastBytes(std::string_view bytes, size_t num_bytes, int32_t rank,
                                           const AllGather& all_gather) {
  std::string received;
  for (size_t begin = 0; begin < num_bytes; begin += kAllGatherPieceBytes) {
    const size_t size = std::min(kAllGatherPieceBytes, num_bytes - begin);
    EPLB_ASSIGN_OR_RETURN(const std::vector<std::string> pieces,
                          all_gather(rank == 0 ? bytes.substr(begin, size) : std::string_view()));
    if (pieces.empty() || pieces.front().size() != size) {
      return FailedPrecondition("start: rank 0 sent ", pieces.empty() ? 0 : pieces.front().size(),
                                " bytes of the placement, expected ", size);
    }
    received += pieces.front();
  }
  return received;
}

}  // namespace eplb
