// A job whose placement a plan changed, with a load window: what explain, top and diff tell of.
#pragma once

#include <string>

#include <google/protobuf/text_format.h>

#include "tests/client/cli/formats/test_files.h"
#include "tests/client/cli/scripted_query.h"

namespace eplb::cli {

class ExplainedJobTest : public FilesTest {
 protected:
  ExplainedJobTest() {
    v1::JobStatus& job = *daemon_.status.add_jobs();
    job = ExampleJob();
    job.add_model_layers(3);
    job.add_model_layers(6);
    v1::Plan plan;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        "plan: 7 policy: 'balanced' result: PLAN_RESULT_COMMITTED base_version: 1 num_chunks: 1 "
        "chunks_committed: 1 last_version: 3 switched_step: 431 balancedness_before: 0.7 "
        "reason: 'the predicted peak falls by 27 %'",
        &plan));
    v1::Plan kept;
    kept.set_plan(8);
    kept.set_result(v1::PLAN_RESULT_KEPT);
    kept.set_reason("it would not pay");
    daemon_.plans = {kept, plan};
    v1::GetLoadResponse load;
    load.set_first_step(400);
    load.set_last_step(449);
    load.set_num_layers(2);
    load.set_num_experts(4);
    std::string cells;
    for (const char tokens : std::string("\x28\x28\x0a\x0a\x14\x14\x14\x14")) {
      cells += tokens + std::string(7, '\0');
    }
    load.set_counts_u64(cells);
    // Half of the window ran under version 1, so that neither placement alone gives these loads.
    for (const double tokens : {25, 25, 50, 20, 40, 20}) load.add_gpu_loads(tokens);
    load.add_versions(1);
    load.add_versions(3);
    daemon_.load = load;
  }
  ScriptedQuery daemon_;
};

}  // namespace eplb::cli
