// Binds the settings to their fields, and derives patches, checks and texts.
#include "proto/wire/settings.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/foreign_text.h"

#include "eplb/v1/types.pb.h"

namespace eplb::wire {
namespace {

constexpr size_t kMaxStepsText = 39;  // two numbers of 19 digits
constexpr std::string_view kNever = "never";
constexpr char kStepsExpected[] = "\"A:B\" with 0 <= A <= B, or \"never\"";

bool ReadStep(std::string_view text, int64_t* step) {
  return !text.empty() && absl::ascii_isdigit(static_cast<unsigned char>(text.front())) &&
         absl::SimpleAtoi(std::string(text), step);
}

template <class T>
using Word = std::pair<std::string_view, T>;
// Words of the members of a type that has few values. None: the type has no words.
template <class T>
constexpr std::array<Word<T>, 0> kWords = {};
template <>
constexpr std::array<Word<bool>, 2> kWords<bool> = {{{"apply", false}, {"observe", true}}};
template <>
constexpr std::array<Word<SpeedMode>, 3> kWords<SpeedMode> = {
    {{"off", SpeedMode::kOff}, {"observe", SpeedMode::kObserve}, {"apply", SpeedMode::kApply}}};
template <>
constexpr std::array<Word<std::optional<Hierarchy>>, 4> kWords<std::optional<Hierarchy>> = {
    {{"auto", std::nullopt},
     {"strict", Hierarchy::kStrict},
     {"soft", Hierarchy::kSoft},
     {"none", Hierarchy::kNone}}};

const std::string& Text(const Scalar& value) { return std::get<std::string>(value); }

// Scalars of members, and members of scalars.
template <class T>
Scalar ScalarOf(const T& member) {
  if constexpr (kWords<T>.size() == 0) return ToScalar(member);
  if constexpr (kWords<T>.size() > 0) {
    return std::string(std::ranges::find(kWords<T>, member, &Word<T>::second)->first);
  }
}
Scalar ScalarOf(const NamedPolicy& policy) { return policy.name; }
Scalar ScalarOf(const StepRange& steps) { return StepsText(steps); }
Scalar ScalarOf(const std::vector<StatedSpeed>& speeds) { return SpeedsText(speeds); }
Scalar ScalarOf(const std::vector<int32_t>& gpus) { return GpusText(gpus); }
template <class T>
void Assign(const Scalar& value, T& member) {
  if constexpr (kWords<T>.size() == 0) member = FromScalar<T>(value);
  if constexpr (kWords<T>.size() > 0) {
    const std::string_view word = Text(value);
    member = std::ranges::find(kWords<T>, word, &Word<T>::first)->second;
  }
}
void Assign(const Scalar& value, NamedPolicy& policy) { policy = Text(value); }
void Assign(const Scalar& value, StepRange& steps) { steps = ParseSteps(Text(value)).value(); }
void Assign(const Scalar& value, std::vector<StatedSpeed>& speeds) {
  speeds = ParseSpeeds(Text(value)).value();
}
void Assign(const Scalar& value, std::vector<int32_t>& gpus) {
  gpus = ParseGpus(Text(value)).value();
}

template <auto kParse, auto kText>
std::optional<std::string> Canonical(const WrittenValue& written) {
  const auto parsed = kParse(written.text);
  return written.is_text() && parsed.ok() ? std::optional(kText(*parsed)) : std::nullopt;
}

std::optional<std::string> CanonicalPolicy(const WrittenValue& written) {
  const std::vector<std::string> names = PolicyNames();
  const bool known = std::ranges::find(names, written.text) != names.end();
  return written.is_text() && known ? std::optional(written.text) : std::nullopt;
}

const std::vector<TextKind>& Kinds() {
  static const auto& kinds = *new std::vector<TextKind>{
      {"policy", {&CanonicalPolicy, absl::StrCat("one of ", absl::StrJoin(PolicyNames(), ", "))}},
      {"steps", {&Canonical<&ParseSteps, &StepsText>, kStepsExpected, kNever}},
      {"speeds", {&Canonical<&ParseSpeeds, &SpeedsText>, SpeedsExpected(), kNoGpu}},
      {"gpus", {&Canonical<&ParseGpus, &GpusText>, kGpusExpected, kNoGpu}}};
  return kinds;
}

// The row of a member, whose field has the given name.
template <auto kMember>
SettingRow Row(const char* field) {
  return {{*v1::PolicySettings::descriptor()->FindFieldByName(field), "policy", Kinds()},
          [](const Settings& settings) { return ScalarOf(settings.*kMember); },
          [](const Scalar& value, Settings* settings) { Assign(value, settings->*kMember); }};
}

// A text in quotes, and not without end.
std::string Shown(const Scalar& value) {
  constexpr size_t kMost = 64;
  const auto* text = std::get_if<std::string>(&value);
  return text == nullptr ? ScalarText(value) : absl::StrCat("\"", Clipped(*text, kMost), "\"");
}

std::string Pair(const SettingRow& row, const Scalar& value) {
  std::string text = ScalarText(value);
  if (const auto* range = std::get_if<TextRange>(&row.range); range != nullptr && text.empty()) {
    text = range->empty_form;
  }
  return absl::StrCat(row.name, "=", text);
}

}  // namespace

absl::StatusOr<StepRange> ParseSteps(std::string_view text) {
  if (text.empty() || text == kNever) return StepRange();
  const size_t colon = text.find(':');
  StepRange steps;
  if (text.size() <= kMaxStepsText && colon != std::string_view::npos &&
      ReadStep(text.substr(0, colon), &steps.first) &&
      ReadStep(text.substr(colon + 1), &steps.last) && steps.last >= steps.first) {
    return steps;
  }
  return InvalidInput(Shown(std::string(text)), ": expected ", kStepsExpected);
}

std::string StepsText(const StepRange& steps) {
  return steps.last < steps.first ? "" : absl::StrCat(steps.first, ":", steps.last);
}

std::vector<std::string> SettingRow::Choices() const {
  if (option->kind() == "policy") return PolicyNames();
  return {option->words().begin(), option->words().end()};
}

std::span<const SettingRow> SettingRows() {
  static const auto& rows = *new std::vector<SettingRow>{
      Row<&Settings::policy>("name"),
      Row<&Settings::observe>("mode"),
      Row<&Settings::every_steps>("every_steps"),
      Row<&Settings::min_gain>("min_gain"),
      Row<&Settings::horizon_steps>("horizon_steps"),
      Row<&Settings::freeze_steps>("freeze_steps"),
      Row<&Settings::max_pause>("max_pause_seconds"),
      Row<&Settings::layers_per_chunk>("layers_per_chunk"),
      Row<&Settings::hierarchy>("hierarchy"),
      Row<&Settings::gpu_speeds>("gpu_speeds"),
      Row<&Settings::stated_speeds>("stated_speeds"),
      Row<&Settings::avoid_gpus>("avoid_gpus"),
  };
  return rows;
}

const SettingRow* FindSetting(std::string_view name) {
  for (const SettingRow& row : SettingRows()) {
    const bool whole = name.starts_with(row.table) && name == row.FullName();
    if (whole || name == row.name) return &row;
  }
  return nullptr;
}

absl::Status CheckPatch(const SettingsPatch& patch) {
  for (const auto& [name, value] : patch) {
    const SettingRow* const row = FindSetting(name);
    if (row == nullptr || row->name != name) return InvalidInput(name, " is no setting");
    if (row->Holds(value)) continue;
    return InvalidInput(name, " is ", Shown(value), ", expected ", row->Expected());
  }
  return absl::OkStatus();
}

Settings Patched(Settings settings, const SettingsPatch& patch) {
  for (const auto& [name, value] : patch) FindSetting(name)->set(value, &settings);
  return settings;
}

SettingsPatch Merged(SettingsPatch earlier, SettingsPatch later) {
  later.merge(std::move(earlier));
  return later;
}

SettingsPatch PatchOf(const Settings& settings) {
  SettingsPatch patch;
  for (const SettingRow& row : SettingRows()) patch[row.name] = row.get(settings);
  return patch;
}

std::string PatchText(const SettingsPatch& patch) {
  std::vector<std::string> parts;
  for (const SettingRow& row : SettingRows()) {
    if (const auto given = patch.find(row.name); given != patch.end()) {
      parts.push_back(Pair(row, given->second));
    }
  }
  return absl::StrJoin(parts, " ");
}

std::string SettingsText(const Settings& settings, const SettingsPatch& patch) {
  SettingsPatch values = PatchOf(settings);
  if (!patch.empty()) {
    std::erase_if(values, [&patch](const auto& value) { return !patch.contains(value.first); });
  }
  return PatchText(values);
}

}  // namespace eplb::wire
