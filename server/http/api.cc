#include "server/http/api.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "proto/wire/messages.h"
#include "proto/wire/names.h"
#include "server/http/job_json.h"

namespace eplb {
namespace {

constexpr std::string_view kJobs = "/api/v1/jobs";
constexpr size_t kShownBytes = 64;
constexpr int64_t kDefaultLimit = 100;
constexpr int64_t kMaxLimit = 1000;
constexpr int64_t kMaxNumber = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxLayer = 1 << 20;

HttpResponse StatusResponse(const absl::Status& status) {
  const int code = absl::IsInvalidArgument(status) ? 400
                   : absl::IsNotFound(status)      ? 404
                   : absl::IsUnavailable(status)   ? 503
                                                   : 500;
  return eplb::ErrorResponse(code, {status.message().data(), status.message().size()});
}

HttpResponse NotThere(std::string_view path) {
  return eplb::ErrorResponse(404, absl::StrCat("no such path: ", Shown(path)));
}

struct Parameter {
  std::string_view name;
  int64_t most;
};

// The numbers of the query, 0..most. errors: InvalidArgument naming what is unknown, given twice or
// no such number.
class Numbers {
 public:
  static absl::StatusOr<Numbers> Parse(const QueryParameters& query,
                                       std::span<const Parameter> known) {
    Numbers numbers;
    for (const auto& entry : query) {
      const std::string& name = entry.first;
      const std::string& text = entry.second;
      const auto found =
          std::ranges::find_if(known, [&](const Parameter& one) { return one.name == name; });
      if (found == known.end()) {
        return InvalidInput("unknown parameter \"", Shown(name), "\", expected ", NamesOf(known));
      }
      int64_t number = 0;
      if (!absl::SimpleAtoi(text, &number) || number < 0 || number > found->most) {
        return InvalidInput(name, " is \"", Shown(text), "\", expected an integer in 0..",
                            found->most);
      }
      if (!numbers.values_.emplace(name, number).second) {
        return InvalidInput(name, " is given twice");
      }
    }
    return numbers;
  }
  std::optional<int64_t> Find(const std::string& name) const {
    const auto found = values_.find(name);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }
  // 0, as none, is the default.
  int32_t limit() const {
    const int64_t limit = Find("limit").value_or(0);
    return static_cast<int32_t>(limit == 0 ? kDefaultLimit : limit);
  }

 private:
  static std::string NamesOf(std::span<const Parameter> known) {
    if (known.empty()) return "none";
    return absl::StrJoin(known, ", ", [](std::string* out, const Parameter& one) {
      absl::StrAppend(out, std::string(one.name));
    });
  }
  std::map<std::string, int64_t> values_;
};

absl::StatusOr<std::string> Job(const ApiSources& sources, const std::string& job,
                                const Numbers& /*numbers*/) {
  EPLB_ASSIGN_OR_RETURN(v1::JobStatus status, sources.job(job));
  return JobToJson(std::move(status));
}

absl::StatusOr<std::string> PlacementOf(const ApiSources& sources, const std::string& job,
                                        const Numbers& numbers) {
  EPLB_ASSIGN_OR_RETURN(const wire::PlacementBody body,
                        sources.placement(job, numbers.Find("version")));
  const std::optional<int64_t> layer = numbers.Find("layer");
  if (!layer) return PlacementBodyToJson(job, body);
  const int32_t num_layers = body.placement.topology().num_layers();
  if (*layer >= num_layers) {
    return InvalidInput("layer is ", *layer, ", the placement has layers 0..", num_layers - 1);
  }
  return LayerToJson(job, body, static_cast<int32_t>(*layer));
}

absl::StatusOr<core::WindowView> WindowOf(const ApiSources& sources, const std::string& job,
                                          std::optional<int64_t> number) {
  if (!number) return sources.load(job);
  EPLB_ASSIGN_OR_RETURN(const WindowLoads loads, sources.window_loads(job, number));
  const bool equal = loads.figures.split() == wire::SplitName(SplitMode::kEqual);
  return core::WindowView{static_cast<int64_t>(loads.figures.first_step()),
                          static_cast<int64_t>(loads.figures.last_step()), loads.load,
                          equal ? loads.on_gpus : nullptr};
}

absl::StatusOr<std::string> LoadOf(const ApiSources& sources, const std::string& job,
                                   const Numbers& numbers) {
  EPLB_ASSIGN_OR_RETURN(const core::WindowView window,
                        WindowOf(sources, job, numbers.Find("window")));
  const std::optional<int64_t> layer = numbers.Find("layer");
  if (layer && *layer >= window.load->num_layers()) {
    return InvalidInput("layer is ", *layer, ", the load has layers 0..",
                        window.load->num_layers() - 1);
  }
  return LoadToJson(job, window,
                    layer ? std::optional(static_cast<int32_t>(*layer)) : std::nullopt);
}

absl::StatusOr<std::string> WindowsOf(const ApiSources& sources, const std::string& job,
                                      const Numbers& numbers) {
  EPLB_ASSIGN_OR_RETURN(std::vector<v1::Window> windows,
                        sources.windows(job, numbers.Find("after").value_or(0), numbers.limit()));
  return WindowsToJson(job, std::move(windows));
}

absl::StatusOr<std::string> GpuLoadsOf(const ApiSources& sources, const std::string& job,
                                       const Numbers& numbers) {
  EPLB_ASSIGN_OR_RETURN(const WindowLoads loads, sources.window_loads(job, numbers.Find("window")));
  return GpuLoadsToJson(job, loads);
}

absl::StatusOr<std::string> TrafficOf(const ApiSources& sources, const std::string& job,
                                      const Numbers& numbers) {
  EPLB_ASSIGN_OR_RETURN(const Traffic traffic, sources.traffic(job, numbers.Find("plan")));
  return TrafficToJson(job, traffic);
}

absl::StatusOr<std::string> PlansOf(const ApiSources& sources, const std::string& job,
                                    const Numbers& numbers) {
  if (const std::optional<int64_t> number = numbers.Find("plan")) {
    EPLB_ASSIGN_OR_RETURN(v1::Plan plan, sources.plan(job, *number));
    return PlansToJson(job, {std::move(plan)});
  }
  EPLB_ASSIGN_OR_RETURN(std::vector<v1::Plan> plans, sources.plans(job, numbers.limit()));
  return PlansToJson(job, std::move(plans));
}

absl::StatusOr<std::string> EventsOf(const ApiSources& sources, const std::string& job,
                                     const Numbers& numbers) {
  EPLB_ASSIGN_OR_RETURN(std::vector<v1::JobEvent> events,
                        sources.events(job, numbers.Find("after").value_or(0), numbers.limit()));
  return EventsToJson(job, std::move(events));
}

constexpr Parameter kRanks[] = {{"ranks", 1}};
constexpr Parameter kVersion[] = {{"version", kMaxNumber}, {"layer", kMaxLayer}};
constexpr Parameter kLoad[] = {{"layer", kMaxLayer}, {"window", kMaxNumber}};
constexpr Parameter kWindow[] = {{"window", kMaxNumber}};
constexpr Parameter kPlan[] = {{"plan", kMaxNumber}};
constexpr Parameter kPlans[] = {{"limit", kMaxLimit}, {"plan", kMaxNumber}};
constexpr Parameter kAfter[] = {{"after", kMaxNumber}, {"limit", kMaxLimit}};
constexpr Parameter kWindows[] = {{"after", kMaxNumber}, {"limit", kMaxPastWindows}};

// A path below /api/v1/jobs/JOB/.
struct ApiPath {
  std::string_view name;
  std::span<const Parameter> parameters;
  absl::StatusOr<std::string> (*answer)(const ApiSources& sources, const std::string& job,
                                        const Numbers& numbers);
};

constexpr ApiPath kRoutes[] = {{"", {}, &Job},
                               {"placement", kVersion, &PlacementOf},
                               {"load", kLoad, &LoadOf},
                               {"windows", kWindows, &WindowsOf},
                               {"gpu_loads", kWindow, &GpuLoadsOf},
                               {"traffic", kPlan, &TrafficOf},
                               {"plans", kPlans, &PlansOf},
                               {"events", kAfter, &EventsOf}};

bool IsJobName(std::string_view name) { return wire::CheckPlainName("job", name).ok(); }

HttpResponse AnswerAboutJob(const ApiSources& sources, std::string_view path, std::string_view rest,
                            const QueryParameters& query) {
  const size_t slash = rest.find('/');
  const std::string job(rest.substr(0, slash));
  const std::string_view what =
      slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);
  const auto route =
      std::ranges::find_if(kRoutes, [what](const ApiPath& one) { return one.name == what; });
  const bool ends_with_slash = slash != std::string_view::npos && what.empty();
  if (route == std::end(kRoutes) || ends_with_slash) return NotThere(path);
  if (!IsJobName(job)) return StatusResponse(NotFound("no job ", Shown(job)));
  const absl::StatusOr<Numbers> numbers = Numbers::Parse(query, route->parameters);
  if (!numbers.ok()) return StatusResponse(numbers.status());
  absl::StatusOr<std::string> body = route->answer(sources, job, *numbers);
  if (!body.ok()) return StatusResponse(body.status());
  return {.body = *std::move(body)};
}

}  // namespace

std::string Shown(std::string_view text) { return Clipped(text, kShownBytes); }

HttpResponse ErrorResponse(int status, std::string_view text) {
  return {.status = status, .body = ErrorToJson(text)};
}

HttpResponse AnswerApi(const ApiSources& sources, std::string_view path,
                       const QueryParameters& query) {
  if (path == kJobs) {
    const absl::StatusOr<Numbers> numbers = Numbers::Parse(query, kRanks);
    if (!numbers.ok()) return StatusResponse(numbers.status());
    return {.body = JobsToJson(sources.jobs(), sources.refusals(), sources.warnings(),
                               numbers->Find("ranks").value_or(1) == 1)};
  }
  if (!path.starts_with(kJobs) || path[kJobs.size()] != '/') return NotThere(path);
  return AnswerAboutJob(sources, path, path.substr(kJobs.size() + 1), query);
}

}  // namespace eplb
