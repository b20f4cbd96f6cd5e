// Paths and queries of the HTTP API: the input is what stands behind GET, e.g.
// "/api/v1/jobs/train/events?after=3". Every answer is JSON with a code that fits. The same input
// is also parsed as the head of a request.
#include <optional>
#include <string>

#include "server/http/api.h"
#include "server/http/request.h"
#include "tests/fuzz/fuzz_target.h"

#include <nlohmann/json.hpp>

namespace eplb {
namespace {

Placement Static() {
  return Placement::Static(
      *Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = 4, .num_gpus = 2}));
}

absl::Status Unknown(const std::string& job) { return absl::NotFoundError("no job " + job); }

// One job, "train", whose texts hold bytes that are not UTF-8.
ApiSources Sources() {
  v1::JobStatus view;
  view.set_job("train");
  view.set_last_reason("\xff\"\n");
  ApiSources sources;
  sources.jobs = [view] { return std::vector<v1::JobStatus>{view}; };
  sources.refusals = [] { return std::vector<v1::Refusal>{}; };
  sources.warnings = [] { return std::vector<std::string>{"a warning"}; };
  sources.job = [view](const std::string& job) -> absl::StatusOr<v1::JobStatus> {
    if (job != "train") return Unknown(job);
    return view;
  };
  sources.placement = [](const std::string& job,
                         std::optional<int64_t> version) -> absl::StatusOr<wire::PlacementBody> {
    if (job != "train" || version.value_or(3) != 3) return Unknown(job);
    return wire::PlacementBody{.version = 3, .digest = {}, .placement = Static()};
  };
  sources.load = [](const std::string&) -> absl::StatusOr<core::WindowView> {
    return core::WindowView{
        .first_step = 0,
        .last_step = 9,
        .load = std::make_shared<const Load>(*Load::FromCounts(LoadMatrix::Constant(2, 4, 7)))};
  };
  sources.windows = [](const std::string& job, int64_t after,
                       int32_t limit) -> absl::StatusOr<std::vector<v1::Window>> {
    if (job != "train") return Unknown(job);
    v1::Window window;
    window.set_window(static_cast<uint64_t>(after));
    window.set_run_id("\xff\n");
    return std::vector<v1::Window>(static_cast<size_t>(limit % 3), window);
  };
  sources.window_loads = [](const std::string& job,
                            std::optional<int64_t> window) -> absl::StatusOr<WindowLoads> {
    if (window.value_or(0) > 9) return Unknown(job);
    v1::Window figures;
    figures.set_window(static_cast<uint64_t>(window.value_or(9)));
    figures.set_split(window ? "equal" : "batch");
    return WindowLoads{
        .figures = figures,
        .load = std::make_shared<const Load>(*Load::FromCounts(LoadMatrix::Constant(2, 4, 7))),
        .on_gpus = window == 3 ? nullptr
                               : std::make_shared<const core::GpuTokens>(core::GpuTokens{
                                     .loads = RealMatrix::Constant(2, 2, 7), .versions = {3}}),
        .on_gpus_static = RealMatrix::Constant(2, 2, 7)};
  };
  sources.traffic = [](const std::string& job,
                       std::optional<int64_t> plan) -> absl::StatusOr<Traffic> {
    if (plan.value_or(0) > 9) return Unknown(job);
    return Traffic{.plan = plan.value_or(0), .flows = {.gpus = {{.to = 1, .transfers = 4}}}};
  };
  sources.plans = [](const std::string&, int32_t limit) -> absl::StatusOr<std::vector<v1::Plan>> {
    return std::vector<v1::Plan>(static_cast<size_t>(limit % 3));
  };
  sources.events = [](const std::string&, int64_t,
                      int32_t limit) -> absl::StatusOr<std::vector<v1::JobEvent>> {
    return std::vector<v1::JobEvent>(static_cast<size_t>(limit % 3));
  };
  return sources;
}

}  // namespace
}  // namespace eplb

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const eplb::ApiSources sources = eplb::Sources();
  const auto text = eplb::fuzz::AsText(data, size);
  const std::optional<eplb::HttpRequest> head = eplb::ParseRequest(text);
  eplb::fuzz::Require(!head || head->path.starts_with('/'), "a path without a slash");
  eplb::HttpRequest request;
  eplb::SplitTarget(text, request);
  const eplb::HttpResponse response = eplb::AnswerApi(sources, request.path, request.query);
  const nlohmann::json body = nlohmann::json::parse(response.body, nullptr, false);
  eplb::fuzz::Require(body.is_object(), "an answer that is no JSON object");
  eplb::fuzz::Require(response.body.find('\n') == response.body.size() - 1, "more than one line");
  const bool ok = response.status == 200;
  eplb::fuzz::Require(ok || response.status == 400 || response.status == 404, "another status");
  eplb::fuzz::Require(ok != body.contains("error"), "the status contradicts the body");
  return 0;
}
