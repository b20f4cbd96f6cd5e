#include "client/files/history_file.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/files/read_file.h"
#include "placement/status_macros.h"
#include "proto/wire/json_value.h"

namespace eplb {
namespace {

using Kind = HistoryRecord::Kind;

constexpr std::pair<std::string_view, Kind> kEvents[] = {
    {"start", Kind::kStart},   {"ready", Kind::kReady}, {"vote", Kind::kVote},
    {"commit", Kind::kCommit}, {"drop", Kind::kDrop},   {"steps", Kind::kStep},
    {"stop", Kind::kStop}};

absl::StatusOr<Kind> KindOf(const std::string& event) {
  for (const auto& [name, kind] : kEvents) {
    if (name == event) return kind;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("event is ", wire::JsonQuote(event),
                   ", expected start, ready, vote, commit, drop, steps or stop"));
}

absl::StatusOr<int64_t> GetNatural(const wire::JsonValue& object, std::string_view key) {
  EPLB_ASSIGN_OR_RETURN(const int64_t number, wire::GetInteger(object, key));
  if (number >= 0) return number;
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(key), " is ", number, ", expected >= 0"));
}

absl::StatusOr<HistoryRecord> RecordFrom(const wire::JsonValue& object) {
  HistoryRecord record;
  EPLB_ASSIGN_OR_RETURN(const std::string event, wire::GetString(object, "event"));
  EPLB_ASSIGN_OR_RETURN(record.kind, KindOf(event));
  EPLB_ASSIGN_OR_RETURN(const int64_t rank, GetNatural(object, "rank"));
  if (rank > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("rank is ", rank, ", expected 0..2^31-1"));
  }
  record.rank = RankId{static_cast<int32_t>(rank)};
  EPLB_ASSIGN_OR_RETURN(record.incarnation, wire::GetString(object, "incarnation"));
  EPLB_ASSIGN_OR_RETURN(record.step, wire::GetInteger(object, "step"));
  // A rank that stopped before its first step has run step -1 last.
  if (record.step < -1 || (record.step == -1 && record.kind != Kind::kStop)) {
    return absl::InvalidArgumentError(absl::StrCat("step is ", record.step, ", expected >= 0"));
  }
  if (record.kind == Kind::kStep) {
    EPLB_ASSIGN_OR_RETURN(record.last_step, GetNatural(object, "last_step"));
    if (record.last_step < record.step) {
      return absl::InvalidArgumentError(
          absl::StrCat("last_step is ", record.last_step, ", below step ", record.step));
    }
  }
  if (record.kind == Kind::kVote) {
    const wire::JsonValue* passed = object.Find("ok");
    if (passed == nullptr || passed->kind != wire::JsonValue::Kind::kBool) {
      return absl::InvalidArgumentError("ok is missing or no boolean");
    }
    record.passed = passed->boolean;
  }
  if (record.kind == Kind::kStop) return record;
  EPLB_ASSIGN_OR_RETURN(record.version, GetNatural(object, "version"));
  EPLB_ASSIGN_OR_RETURN(const std::string hex, wire::GetString(object, "digest"));
  EPLB_ASSIGN_OR_RETURN(record.digest, Digest::FromHex(hex));
  return record;
}

}  // namespace

absl::StatusOr<RankHistory> ReadHistoryFile(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path));
  RankHistory history;
  for (const TextLine& line : SplitLines(text)) {
    const absl::StatusOr<wire::JsonValue> object = wire::ParseJson(line.text);
    if (!object.ok() && !line.has_newline) break;
    if (!object.ok()) return InLine(path, line.number, object.status());
    absl::StatusOr<HistoryRecord> record = RecordFrom(*object);
    if (!record.ok()) return InLine(path, line.number, record.status());
    if (!history.records.empty() && record->rank != history.rank) {
      return InLine(path, line.number,
                    absl::InvalidArgumentError(absl::StrCat("rank is ", record->rank.value,
                                                            ", the records before are of rank ",
                                                            history.rank.value)));
    }
    history.rank = record->rank;
    history.records.push_back(*std::move(record));
  }
  if (history.records.empty()) return absl::InvalidArgumentError(path + ": has no record");
  return history;
}

}  // namespace eplb
