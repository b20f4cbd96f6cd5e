// The rows of the settings, and what follows from them: patches, checks and texts.
#include "proto/wire/settings.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/foreign_text.h"

namespace eplb::wire {
namespace {

constexpr size_t kMaxStepsText = 39;  // two numbers of 19 digits
constexpr int64_t kMaxSteps = std::numeric_limits<int32_t>::max();

bool ReadStep(std::string_view text, int64_t* step) {
  return !text.empty() && absl::ascii_isdigit(static_cast<unsigned char>(text.front())) &&
         absl::SimpleAtoi(std::string(text), step);
}

// The two places of a setting that has one type in both.
template <auto kMember>
Scalar Get(const Settings& settings) {
  return ToScalar(settings.*kMember);
}
template <auto kMember>
void Set(const Scalar& value, Settings* settings) {
  auto& place = settings->*kMember;
  place = FromScalar<std::decay_t<decltype(place)>>(value);
}
template <auto kMember>
std::optional<Scalar> GetGiven(const SettingsPatch& patch) {
  const auto& place = patch.*kMember;
  if (!place) return std::nullopt;
  return ToScalar(*place);
}
template <auto kMember>
void SetGiven(const Scalar& value, SettingsPatch* patch) {
  auto& place = patch->*kMember;
  place = FromScalar<typename std::decay_t<decltype(place)>::value_type>(value);
}

using S = Settings;
using P = SettingsPatch;

// The words of a setting that is one of a few values.
template <class Value>
struct Word {
  std::string_view word;
  Value value;
};
constexpr Word<std::optional<Hierarchy>> kHierarchies[] = {{"auto", std::nullopt},
                                                           {"strict", Hierarchy::kStrict},
                                                           {"soft", Hierarchy::kSoft},
                                                           {"none", Hierarchy::kNone}};
constexpr Word<SpeedMode> kSpeedModes[] = {
    {"off", SpeedMode::kOff}, {"observe", SpeedMode::kObserve}, {"apply", SpeedMode::kApply}};

template <class Value, size_t kCount>
std::string_view WordOf(const Word<Value> (&words)[kCount], const Value& value) {
  const auto found =
      std::ranges::find_if(words, [&value](const auto& one) { return one.value == value; });
  return found->word;  // the table has every value
}
// REQUIRES: one of the words.
template <class Value, size_t kCount>
Value ValueOf(const Word<Value> (&words)[kCount], const Scalar& word) {
  const auto found = std::ranges::find_if(
      words, [&word](const auto& one) { return one.word == std::get<std::string>(word); });
  return found->value;
}

constexpr SettingRow kRows[] = {
    {"name", "policy", "name", PolicyRange{}, "The algorithm that computes placements.",
     &Get<&S::policy_name>, &Set<&S::policy_name>, &GetGiven<&P::policy_name>,
     &SetGiven<&P::policy_name>},
    {"mode", "policy", "mode", WordRange{"apply", "observe"},
     "apply: propose each placement that pays; observe: decide, explain and price, and propose "
     "nothing.",
     [](const S& s) -> Scalar { return s.observe ? "observe" : "apply"; },
     [](const Scalar& v, S* s) { s->observe = std::get<std::string>(v) == "observe"; },
     &GetGiven<&P::mode>, &SetGiven<&P::mode>},
    {"every_steps", "policy", "every_steps", IntegerRange{1, kMaxSteps},
     "Least number of training steps between two decisions of a job.", &Get<&S::every_steps>,
     &Set<&S::every_steps>, &GetGiven<&P::every_steps>, &SetGiven<&P::every_steps>},
    {"min_gain", "policy", "min_gain", NumberRange{0, 1},
     "Least fall of the summed peak GPU load, on the steps that are decided on, that a new "
     "placement must bring, as a fraction.",
     &Get<&S::min_gain>, &Set<&S::min_gain>, &GetGiven<&P::min_gain>, &SetGiven<&P::min_gain>},
    {"horizon_steps", "policy", "horizon_steps", IntegerRange{1, kMaxSteps},
     "With prices: most steps over which the saving of a new placement is counted.",
     &Get<&S::horizon_steps>, &Set<&S::horizon_steps>, &GetGiven<&P::horizon_steps>,
     &SetGiven<&P::horizon_steps>},
    {"freeze_steps", "policy", "freeze_steps", kStepsRange,
     "Training steps, both included, in which nothing is decided, for example a warm-up.",
     [](const S& s) -> Scalar { return StepsText(s.freeze_steps); },
     [](const Scalar& v, S* s) { s->freeze_steps = ParseSteps(std::get<std::string>(v)).value(); },
     &GetGiven<&P::freeze_steps>, &SetGiven<&P::freeze_steps>},
    {"max_pause", "migration", "max_pause_seconds",
     DurationRange{absl::Milliseconds(1), absl::Hours(1), "200ms"},
     "Longest predicted pause of a switch. Longer ones take fewer layers or parts of a layer; a "
     "layer whose smallest part exceeds it stays.",
     &Get<&S::max_pause>, &Set<&S::max_pause>, &GetGiven<&P::max_pause>, &SetGiven<&P::max_pause>},
    {"layers_per_chunk", "migration", "layers_per_chunk", IntegerRange{1, 1 << 20},
     "Most layers that one boundary of the training switches together.", &Get<&S::layers_per_chunk>,
     &Set<&S::layers_per_chunk>, &GetGiven<&P::layers_per_chunk>, &SetGiven<&P::layers_per_chunk>},
    {"hierarchy", "policy", "hierarchy", WordRange{"auto", "strict", "soft", "none"},
     "Ties of replicas to nodes: strict keeps an expert group on a node, soft only its primaries; "
     "auto: the policy's rule.",
     [](const S& s) -> Scalar { return std::string(WordOf(kHierarchies, s.hierarchy)); },
     [](const Scalar& v, S* s) { s->hierarchy = ValueOf(kHierarchies, v); },
     &GetGiven<&P::hierarchy>, &SetGiven<&P::hierarchy>},
    {"gpu_speeds", "policy", "gpu_speeds", WordRange{"off", "observe", "apply"},
     "GPU speeds from the ranks' step times: observe shows slow GPUs, apply also plans less load "
     "for them.",
     [](const S& s) -> Scalar { return std::string(WordOf(kSpeedModes, s.gpu_speeds)); },
     [](const Scalar& v, S* s) { s->gpu_speeds = ValueOf(kSpeedModes, v); },
     &GetGiven<&P::gpu_speeds>, &SetGiven<&P::gpu_speeds>},
    {"stated_speeds", "policy", "stated_speeds", kSpeedsRange,
     "Relative speeds of GPUs of the EP group, used in place of measured ones: 3:0.5 plans half "
     "the load for GPU 3.",
     [](const S& s) -> Scalar { return SpeedsText(s.stated_speeds); },
     [](const Scalar& v, S* s) {
       s->stated_speeds = ParseSpeeds(std::get<std::string>(v)).value();
     },
     &GetGiven<&P::stated_speeds>, &SetGiven<&P::stated_speeds>},
    {"avoid_gpus", "policy", "avoid_gpus", kGpusRange,
     "GPUs of the EP group that get the experts with the fewest tokens; their slots stay in use.",
     [](const S& s) -> Scalar { return GpusText(s.avoid_gpus); },
     [](const Scalar& v, S* s) { s->avoid_gpus = ParseGpus(std::get<std::string>(v)).value(); },
     &GetGiven<&P::avoid_gpus>, &SetGiven<&P::avoid_gpus>},
};

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
  return absl::StrCat(std::string(row.name), "=", text);
}

}  // namespace

absl::StatusOr<StepRange> ParseSteps(std::string_view text) {
  if (text.empty() || text == kStepsRange.empty_form) return StepRange();
  const size_t colon = text.find(':');
  StepRange steps;
  if (text.size() <= kMaxStepsText && colon != std::string_view::npos &&
      ReadStep(text.substr(0, colon), &steps.first) &&
      ReadStep(text.substr(colon + 1), &steps.last) && steps.last >= steps.first) {
    return steps;
  }
  return InvalidInput(Shown(std::string(text)), ": expected ", StepsExpected());
}

std::string StepsText(const StepRange& steps) {
  return steps.last < steps.first ? "" : absl::StrCat(steps.first, ":", steps.last);
}

std::optional<Scalar> PolicyRange::Read(const WrittenValue& written) const {
  if (!written.is_text() || !Holds(written.text)) return std::nullopt;
  return written.text;
}

bool PolicyRange::Holds(const Scalar& value) const {
  const auto* text = std::get_if<std::string>(&value);
  const std::vector<std::string_view> names = PolicyNames();
  return text != nullptr && std::ranges::find(names, *text) != names.end();
}

std::string PolicyRange::Expected() const {
  std::string expected = "one of ";
  for (const std::string_view name : PolicyNames()) {
    absl::StrAppend(&expected, expected.size() > 7 ? ", " : "", std::string(name));
  }
  return expected;
}

std::optional<std::string> CanonicalSteps(std::string_view text) {
  const absl::StatusOr<StepRange> steps = ParseSteps(text);
  return steps.ok() ? std::optional(StepsText(*steps)) : std::nullopt;
}

std::string StepsExpected() { return "\"A:B\" with 0 <= A <= B, or \"never\""; }

std::optional<Scalar> SettingRow::Read(const WrittenValue& written) const {
  return std::visit([&](const auto& each) { return each.Read(written); }, range);
}

bool SettingRow::Holds(const Scalar& value) const {
  return std::visit([&](const auto& each) { return each.Holds(value); }, range);
}

std::string SettingRow::Expected() const {
  return std::visit([](const auto& each) { return each.Expected(); }, range);
}

std::vector<std::string> SettingRow::Choices() const {
  if (std::holds_alternative<PolicyRange>(range)) {
    const std::vector<std::string_view> names = PolicyNames();
    return {names.begin(), names.end()};
  }
  std::vector<std::string> choices;
  if (const auto* words = std::get_if<WordRange>(&range)) {
    for (const std::string_view word : words->words) {
      if (!word.empty()) choices.emplace_back(word);
    }
  }
  return choices;
}

std::span<const SettingRow> SettingRows() { return kRows; }

const SettingRow* FindSetting(std::string_view name) {
  for (const SettingRow& row : kRows) {
    if (name == row.name ||
        name == absl::StrCat(std::string(row.table), ".", std::string(row.name)))
      return &row;
  }
  return nullptr;
}

absl::Status CheckPatch(const SettingsPatch& patch) {
  for (const SettingRow& row : kRows) {
    const std::optional<Scalar> value = row.get_given(patch);
    if (!value || row.Holds(*value)) continue;
    return InvalidInput(std::string(row.name), " is ", Shown(*value), ", expected ",
                        row.Expected());
  }
  return absl::OkStatus();
}

Settings Patched(Settings settings, const SettingsPatch& patch) {
  for (const SettingRow& row : kRows) {
    if (const std::optional<Scalar> value = row.get_given(patch)) row.set(*value, &settings);
  }
  return settings;
}

SettingsPatch Merged(SettingsPatch earlier, const SettingsPatch& later) {
  for (const SettingRow& row : kRows) {
    if (const std::optional<Scalar> value = row.get_given(later)) row.set_given(*value, &earlier);
  }
  return earlier;
}

SettingsPatch PatchOf(const Settings& settings) {
  SettingsPatch patch;
  for (const SettingRow& row : kRows) row.set_given(row.get(settings), &patch);
  return patch;
}

std::string PatchText(const SettingsPatch& patch) {
  std::vector<std::string> parts;
  for (const SettingRow& row : kRows) {
    if (const std::optional<Scalar> value = row.get_given(patch))
      parts.push_back(Pair(row, *value));
  }
  return absl::StrJoin(parts, " ");
}

std::string SettingsText(const Settings& settings, const SettingsPatch& patch) {
  std::vector<std::string> parts;
  for (const SettingRow& row : kRows) {
    if (!patch.empty() && !row.get_given(patch)) continue;
    parts.push_back(Pair(row, row.get(settings)));
  }
  return absl::StrJoin(parts, " ");
}

}  // namespace eplb::wire
