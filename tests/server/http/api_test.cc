#include "server/http/api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include <google/protobuf/text_format.h>

#include "server/http/job_json.h"
#include "server/http/page/assets.h"
#include "tests/support/messages.h"

#include <nlohmann/json.hpp>

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

v1::JobStatus TestView() {
  auto view = MessageOf<v1::JobStatus>(R"(
    job: "train" state: JOB_STATE_IDLE digest: "0123"
    shape { num_layers: 2 num_experts: 4 num_slots: 4 num_gpus: 2 num_nodes: 1 num_groups: 1 }
    balancedness: nan
    ranks { connected: true running_version: 3 step: 7 state: RANK_STATE_CONNECTED }
  )");
  view.set_last_reason("kept \xff it");
  return view;
}

absl::Status Unknown(const std::string& job) { return absl::NotFoundError("no job " + job); }

v1::Window FiguresAt(int64_t number) {
  auto window = MessageOf<v1::Window>(R"(
    completed_unix_micros: 1500 first_step: 10 last_step: 19 versions: [3, 4] coverage: 1
    step_seconds: nan tokens: 30 split: "batch" balancedness: 0.75 has_loads: true)");
  window.set_window(static_cast<uint64_t>(number));
  window.set_run_id("run\xff");
  return window;
}

WindowLoads LoadsAt(int64_t number) {
  return {.figures = FiguresAt(number),
          .load = std::make_shared<const Load>(*Load::FromCounts(LoadMatrix::Constant(2, 3, 5))),
          .on_gpus = std::make_shared<const core::GpuTokens>(
              core::GpuTokens{.loads = RealMatrix::Constant(2, 2, 7.5), .versions = {3, 4}}),
          .on_gpus_static = RealMatrix::Constant(2, 2, 8)};
}

ApiSources TestSources() {
  ApiSources sources;
  sources.jobs = [] { return std::vector{TestView()}; };
  sources.refusals = [] {
    std::vector<v1::Refusal> refusals(1);
    refusals[0].set_job("j65");
    refusals[0].set_reason("the daemon already knows 64 jobs");
    refusals[0].set_count(8);
    refusals[0].set_seconds_ago(3);
    return refusals;
  };
  sources.warnings = [] { return std::vector<std::string>{"too few descriptors"}; };
  sources.job = [](const std::string& job) -> absl::StatusOr<v1::JobStatus> {
    if (job != "train") return Unknown(job);
    return TestView();
  };
  sources.placement = [](const std::string& job,
                         std::optional<int64_t> version) -> absl::StatusOr<wire::PlacementBody> {
    if (version.value_or(3) != 3) return absl::NotFoundError("version is not kept");
    if (job != "train") return Unknown(job);
    return wire::PlacementBody{
        .version = 3,
        .digest = {},
        .placement = Placement::Static(
            *Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = 4, .num_gpus = 2}))};
  };
  sources.load = [](const std::string&) -> absl::StatusOr<core::WindowView> {
    LoadMatrix counts = LoadMatrix::Constant(2, 3, 5);
    counts(1, 2) = std::numeric_limits<int64_t>::max() - 10;
    return core::WindowView{.first_step = 10,
                            .last_step = 19,
                            .load = std::make_shared<const Load>(*Load::FromCounts(counts))};
  };
  sources.windows = [](const std::string& job, int64_t after,
                       int32_t limit) -> absl::StatusOr<std::vector<v1::Window>> {
    if (job != "train") return Unknown(job);
    return std::vector<v1::Window>{FiguresAt(after + limit)};
  };
  sources.window_loads = [](const std::string&,
                            std::optional<int64_t> window) -> absl::StatusOr<WindowLoads> {
    if (window.value_or(5) != 5) return absl::NotFoundError("its loads are not kept");
    return LoadsAt(5);
  };
  sources.traffic = [](const std::string&, std::optional<int64_t> plan) -> absl::StatusOr<Traffic> {
    if (plan.value_or(8) != 8) return absl::NotFoundError("it moved no expert");
    return Traffic{
        .plan = 8,
        .base_version = 3,
        .last_version = 4,
        .num_gpus = 2,
        .num_nodes = 1,
        .flows = {.transfers = 3,
                  .gpus = {{.from = 0, .to = 1, .transfers = 2}, {.from = 1, .transfers = 1}},
                  .nodes = {{.transfers = 3}}}};
  };
  sources.plans = [](const std::string&, int32_t limit) -> absl::StatusOr<std::vector<v1::Plan>> {
    v1::Plan plan;
    plan.set_plan(static_cast<uint64_t>(limit));
    plan.set_result(v1::PLAN_RESULT_OBSERVED);
    return std::vector<v1::Plan>{plan};
  };
  sources.events = [](const std::string&, int64_t after,
                      int32_t limit) -> absl::StatusOr<std::vector<v1::JobEvent>> {
    auto event = MessageOf<v1::JobEvent>(R"(unix_micros: 1500 job: "train" name: "kept")");
    event.set_sequence(static_cast<uint64_t>(after + limit));
    return std::vector<v1::JobEvent>{event};
  };
  return sources;
}

HttpResponse Ask(const std::string& path, const QueryParameters& query = {}) {
  return AnswerApi(TestSources(), path, query);
}

std::string ErrorOf(const HttpResponse& response) {
  return Json::parse(response.body).at("error").get<std::string>();
}

TEST(ApiTest, TheDescriptionHasTheKeysOfTheAnswers) {
  const Json schemas = Json::parse(FindPageAsset("openapi.json")->bytes)["components"]["schemas"];
  const Json job = Json::parse(JobToJson(TestView()));
  EXPECT_EQ(job.size(), schemas["Job"]["required"].size());
  for (const auto& [key, value] : job.items()) {
    EXPECT_NE(schemas["Job"]["properties"][key]["description"], Json()) << key;
  }
  const Json windows = Json::parse(Ask("/api/v1/jobs/train/windows").body)["windows"];
  EXPECT_EQ(windows[0].size(), schemas["Window"]["required"].size());
  EXPECT_EQ(schemas["Job"]["properties"]["balancedness"]["type"], Json({"number", "null"}));
}

TEST(ApiTest, TheColumnsOfThePageAreInTheirOrderWithThoseOfListsLast) {
  const std::string_view script = FindPageAsset("figures.js")->bytes;
  const size_t begin = script.find('{');
  const Json figures = Json::parse(script.substr(begin, script.rfind(';') - begin));
  std::vector<std::string> labels;
  for (const Json& one : figures["TriedCandidate"]) labels.push_back(one["label"]);
  EXPECT_THAT(labels, ElementsAre("", "candidate", "net", "balancedness", "realized", "windows"));
  EXPECT_EQ(figures["Window"][0]["to"], "last_step");
  EXPECT_THAT(figures["Window"][1].dump(), HasSubstr("\"Measured, under the placements"));
}

TEST(ApiTest, JobsAreListedWithTheKeysOfTheCommandLine) {
  const HttpResponse response = Ask("/api/v1/jobs");
  EXPECT_EQ(response.status, 200);
  const Json refusal = Json::parse(response.body).at("refusals").at(0);
  EXPECT_EQ(refusal.at("job"), "j65");
  EXPECT_EQ(refusal.at("seconds_ago"), 3);
  EXPECT_EQ(Json::parse(response.body).at("warnings").at(0), "too few descriptors");
  EXPECT_EQ(Json::parse(response.body).at("jobs").at(0).at("ranks").at(0).at("step"), 7);
}

TEST(ApiTest, NumbersAreFiniteAndTextIsUtf8) {
  const Json job = Json::parse(Ask("/api/v1/jobs/train").body);
  EXPECT_EQ(job.at("balancedness"), 0);
  EXPECT_THAT(job.at("last_reason").get<std::string>(), HasSubstr("kept ? it"));
}

TEST(ApiTest, UnknownJobsPathsAndVersionsAre404) {
  EXPECT_EQ(Ask("/api/v1/jobs/other").status, 404);
  EXPECT_EQ(ErrorOf(Ask("/api/v1/jobs/other")), "no job other");
  EXPECT_EQ(Ask("/api/v1/jobs/a b").status, 404);
  EXPECT_EQ(Ask("/api/v1/jobs/" + std::string(129, 'a')).status, 404);
  for (const char* path : {"/api/v1", "/api/v1/jobsx", "/api/v1/jobs/", "/api/v1/jobs/train/",
                           "/api/v1/jobs/train/x", "/api/v1/jobs/train/load/", "/api/v2/jobs"}) {
    EXPECT_EQ(Ask(path).status, 404) << path;
  }
  EXPECT_EQ(Ask("/api/v1/jobs/train/placement", {{"version", "4"}}).status, 404);
}

TEST(ApiTest, APlacementIsTheFileFormat) {
  const HttpResponse response = Ask("/api/v1/jobs/train/placement", {{"version", "3"}});
  EXPECT_EQ(response.status, 200);
  const Json body = Json::parse(response.body);
  EXPECT_EQ(body.at("version"), 3);
  EXPECT_EQ(body.at("placement").at("format"), "eplb.placement.v1");
}

TEST(ApiTest, ALoadIsExactAndOneLayerCanBeAskedFor) {
  const Json all = Json::parse(Ask("/api/v1/jobs/train/load").body);
  EXPECT_EQ(all.at("load").size(), 2U);
  EXPECT_EQ(all.at("load").at(1).at(2), std::numeric_limits<int64_t>::max() - 10);
  const Json one = Json::parse(Ask("/api/v1/jobs/train/load", {{"layer", "1"}}).body);
  EXPECT_EQ(one.at("load").size(), 1U);
  EXPECT_EQ(one.at("first_layer"), 1);
  const HttpResponse beyond = Ask("/api/v1/jobs/train/load", {{"layer", "2"}});
  EXPECT_EQ(beyond.status, 400);
  EXPECT_EQ(ErrorOf(beyond), "layer is 2, the load has layers 0..1");
}

TEST(ApiTest, TheGpusTokensAreShownWithTheLoadWhenTheirPlacementsAreKnown) {
  EXPECT_TRUE(Json::parse(Ask("/api/v1/jobs/train/load").body).at("gpu_loads").empty());
  ApiSources sources = TestSources();
  sources.load = [](const std::string&) -> absl::StatusOr<core::WindowView> {
    core::GpuTokens tokens{.loads = RealMatrix::Constant(2, 2, 7.5), .versions = {3, 4}};
    tokens.loads(1, 1) = 0.5;
    return core::WindowView{
        .load = std::make_shared<const Load>(*Load::FromCounts(LoadMatrix::Constant(2, 3, 5))),
        .on_gpus = std::make_shared<const core::GpuTokens>(tokens)};
  };
  const Json all = Json::parse(AnswerApi(sources, "/api/v1/jobs/train/load", {}).body);
  EXPECT_EQ(all.at("gpu_loads"), Json::parse("[[7.5,7.5],[7.5,0.5]]"));
  EXPECT_EQ(all.at("versions"), Json::parse("[3,4]"));
  const Json one =
      Json::parse(AnswerApi(sources, "/api/v1/jobs/train/load", {{"layer", "1"}}).body);
  EXPECT_EQ(one.at("gpu_loads"), Json::parse("[[7.5,0.5]]"));
}

TEST(ApiTest, OneLayerOfAPlacementHasSlotsGpusAndPrimaries) {
  const std::string path = "/api/v1/jobs/train/placement";
  const Json body = Json::parse(Ask(path, {{"layer", "1"}}).body);
  EXPECT_EQ(body.at("layer"), 1);
  EXPECT_EQ(body.at("version"), 3);
  EXPECT_EQ(body.at("experts"), Json::parse("[0,1,2,3]"));
  EXPECT_EQ(body.at("gpus"), Json::parse("[0,0,1,1]"));
  EXPECT_EQ(body.at("primaries"), Json::parse("[0,1,2,3]"));
  EXPECT_FALSE(body.contains("placement"));
  const HttpResponse beyond = Ask(path, {{"layer", "2"}});
  EXPECT_EQ(beyond.status, 400);
  EXPECT_EQ(ErrorOf(beyond), "layer is 2, the placement has layers 0..1");
}

TEST(ApiTest, AnEarlierWindowsLoadCanBeAskedFor) {
  const std::string path = "/api/v1/jobs/train/load";
  const Json body = Json::parse(Ask(path, {{"window", "5"}, {"layer", "1"}}).body);
  EXPECT_EQ(body.at("load"), Json::parse("[[5,5,5]]"));
  EXPECT_EQ(body.at("last_step"), 19);
  EXPECT_TRUE(body.at("gpu_loads").empty()) << "the run splits each batch by itself";
  ApiSources sources = TestSources();
  sources.window_loads = [](const std::string&, std::optional<int64_t>) {
    WindowLoads loads = LoadsAt(5);
    loads.figures.set_split("equal");
    return absl::StatusOr<WindowLoads>(loads);
  };
  EXPECT_EQ(Json::parse(AnswerApi(sources, path, {{"window", "5"}}).body).at("gpu_loads").size(),
            2);
  EXPECT_EQ(Ask(path, {{"window", "6"}}).status, 404);
  EXPECT_EQ(ErrorOf(Ask(path, {{"window", "6"}})), "its loads are not kept");
}

TEST(ApiTest, WindowsHaveTheirFiguresAndNullForWhatIsNotKnown) {
  const std::string path = "/api/v1/jobs/train/windows";
  const Json body = Json::parse(Ask(path, {{"after", "7"}, {"limit", "4096"}}).body);
  const Json one = body.at("windows").at(0);
  EXPECT_EQ(one.at("window"), 4103);
  EXPECT_EQ(one.at("completed"), "1970-01-01T00:00:00.001Z");
  EXPECT_EQ(one.at("completed_unix_micros"), 1500);
  EXPECT_EQ(one.at("versions"), Json::parse("[3,4]"));
  EXPECT_EQ(one.at("split"), "batch");
  EXPECT_EQ(one.at("balancedness"), 0.75);
  EXPECT_TRUE(one.at("balancedness_equal").is_null());
  EXPECT_TRUE(one.at("balancedness_static").is_null());
  EXPECT_TRUE(one.at("balancedness_without_eplb").is_null());
  EXPECT_EQ(one.at("has_loads"), true);
  EXPECT_EQ(Json::parse(Ask(path).body).at("windows").at(0).at("window"), 100) << "the default";
  EXPECT_EQ(ErrorOf(Ask(path, {{"limit", "4097"}})),
            "limit is \"4097\", expected an integer in 0..4096");
  EXPECT_EQ(Ask("/api/v1/jobs/other/windows").status, 404);
}

TEST(ApiTest, GpuLoadsAreOfTheNewestOrOfAGivenWindow) {
  const std::string path = "/api/v1/jobs/train/gpu_loads";
  const Json body = Json::parse(Ask(path).body);
  EXPECT_EQ(body.at("window"), 5);
  EXPECT_EQ(body.at("gpu_loads"), Json::parse("[[7.5,7.5],[7.5,7.5]]"));
  EXPECT_EQ(body.at("gpu_loads_static"), Json::parse("[[8.0,8.0],[8.0,8.0]]"));
  EXPECT_EQ(Ask(path, {{"window", "4"}}).status, 404);
  EXPECT_EQ(ErrorOf(Ask(path, {{"layer", "1"}})), "unknown parameter \"layer\", expected window");
}

TEST(ApiTest, TrafficHasFlowsAsTriples) {
  const std::string path = "/api/v1/jobs/train/traffic";
  const Json body = Json::parse(Ask(path, {{"plan", "8"}}).body);
  EXPECT_EQ(body.at("transfers"), 3);
  EXPECT_EQ(body.at("gpus"), Json::parse("[[0,1,2],[1,0,1]]"));
  EXPECT_EQ(body.at("nodes"), Json::parse("[[0,0,3]]"));
  EXPECT_TRUE(body.at("received_bytes").is_null());
  EXPECT_EQ(Ask(path, {{"plan", "9"}}).status, 404);
}

TEST(ApiTest, EventsTakeAfterAndLimit) {
  const Json body =
      Json::parse(Ask("/api/v1/jobs/train/events", {{"after", "7"}, {"limit", "2"}}).body);
  EXPECT_EQ(body.at("events").at(0).at("sequence"), 9);
  EXPECT_EQ(body.at("events").at(0).at("unix_micros"), 1500);
  EXPECT_EQ(body.at("events").at(0).at("time"), "1970-01-01T00:00:00.001Z");
  EXPECT_EQ(Json::parse(Ask("/api/v1/jobs/train/events").body).at("events").at(0).at("sequence"),
            100);
}

TEST(ApiTest, WrongParametersAre400AndNamed) {
  const std::string path = "/api/v1/jobs/train/events";
  const std::pair<QueryParameters, std::string> cases[] = {
      {{{"limi", "3"}}, "unknown parameter \"limi\", expected after, limit"},
      {{{"limit", "1001"}}, "limit is \"1001\", expected an integer in 0..1000"},
      {{{"limit", "-1"}}, "limit is \"-1\", expected an integer in 0..1000"},
      {{{"limit", "3x"}}, "limit is \"3x\", expected an integer in 0..1000"},
      {{{"after", ""}}, "after is \"\", expected an integer in 0..9223372036854775807"},
      {{{"limit", "3"}, {"limit", "4"}}, "limit is given twice"}};
  for (const auto& [query, error] : cases) {
    const HttpResponse response = Ask(path, query);
    EXPECT_EQ(response.status, 400) << error;
    EXPECT_EQ(ErrorOf(response), error);
  }
  EXPECT_EQ(Ask("/api/v1/jobs", {{"x", "1"}}).status, 400);
  EXPECT_EQ(Ask("/api/v1/jobs/train", {{"layer", "1"}}).status, 400);
}

TEST(ApiTest, PlansTakeALimit) {
  const Json body = Json::parse(Ask("/api/v1/jobs/train/plans", {{"limit", "5"}}).body);
  EXPECT_EQ(body.at("job"), "train");
  EXPECT_EQ(body.at("plans").at(0).at("plan"), 5);
  EXPECT_EQ(body.at("plans").at(0).at("result"), "observed");
}

TEST(ApiTest, AFailingStoreIs503) {
  ApiSources sources = TestSources();
  sources.events = [](const std::string&, int64_t,
                      int32_t) -> absl::StatusOr<std::vector<v1::JobEvent>> {
    return absl::UnavailableError("disk I/O error");
  };
  EXPECT_EQ(AnswerApi(sources, "/api/v1/jobs/train/events", {}).status, 503);
}

}  // namespace
}  // namespace eplb
