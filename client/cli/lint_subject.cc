#include "client/cli/lint_subject.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/files.h"
#include "base/invalid_input.h"
#include "base/status_macros.h"
#include "client/cli/formats/placement_content.h"

namespace eplb::cli {

absl::StatusOr<LintSubject> ReadLintSubject(const std::string& path) {
  constexpr std::string_view kFormat = "eplb.placement.v1";
  EPLB_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path));
  LintSubject subject;
  EPLB_ASSIGN_OR_RETURN(subject.format, DetectPlacementFormat(path, text));
  if (!subject.is_ours()) {
    EPLB_ASSIGN_OR_RETURN(subject.peers, subject.format.parse(path, text));
    return subject;
  }
  absl::StatusOr<wire::JsonValue> object = wire::ParseJson(text);
  if (!object.ok()) return InFile(path, object.status());
  const wire::JsonValue* format = object->Find("format");
  if (format == nullptr || format->kind != wire::JsonValue::Kind::kString ||
      format->text != kFormat) {
    return InvalidInput(
        path, ": is no placement, expected a JSON object with \"format\":\"eplb.placement.v1\"");
  }
  subject.object = *std::move(object);
  return subject;
}

int64_t LintSubject::num_experts() const {
  return peers.num_experts.value_or(
      std::min<int64_t>(int64_t{peers.slots.maxCoeff()} + 1, peers.slots.cols()));
}

absl::StatusOr<int64_t> LintSubject::ShapeNumber(std::string_view key) const {
  if (is_ours()) return wire::GetInteger(object, key);
  if (key == "num_layers") return int64_t{peers.slots.rows()};
  if (key == "num_slots") return int64_t{peers.slots.cols()};
  if (key == "num_logical_experts") return num_experts();
  std::optional<int32_t> number;
  if (key == "num_gpus") number = peers.frame.num_gpus;
  if (key == "num_nodes") number = peers.frame.num_nodes;
  if (key == "num_groups") number = peers.frame.num_groups;
  if (number) return int64_t{*number};
  return absl::NotFoundError(std::string(key));
}

}  // namespace eplb::cli
