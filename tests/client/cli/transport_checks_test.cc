#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "client/cli/health_checks.h"
#include "client/rows/paths/nccl_settings.h"
#include "tests/client/cli/scripted_query.h"

namespace eplb::cli {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;
using Result = Check::Result;

v1::TransportInfo& Add(v1::JobStatus& job, const std::string& name) {
  v1::RankStatus& rank = *job.add_ranks();
  rank.set_rank(static_cast<uint32_t>(job.ranks_size() - 1));
  rank.mutable_transport()->set_name(name);
  return *rank.mutable_transport();
}

void Set(v1::TransportInfo& transport, const std::string& name, const std::string& value) {
  v1::TransportInfo::Setting& setting = *transport.add_settings();
  setting.set_name(name);
  setting.set_value(value);
}

// Two ranks on two nodes.
v1::JobStatus NcclJob() {
  v1::JobStatus job;
  job.set_job("moe");
  job.mutable_shape()->set_num_nodes(2);
  for (int i = 0; i < 2; ++i) {
    v1::TransportInfo& transport = Add(job, "nccl");
    transport.set_device(0);
    transport.set_device_name("NVIDIA H200");
    transport.set_nccl_version("2.28.9");
    transport.set_nccl_library("/usr/lib/libnccl.so.2");
    Set(transport, "max_ctas", "16");
    Set(transport, "traffic_class", "default");
  }
  return job;
}

v1::TransportInfo& Of(v1::JobStatus& job, int rank) {
  return *job.mutable_ranks(rank)->mutable_transport();
}

TEST(TransportChecksTest, AnOlderClientThatSaysNothingIsNoFinding) {
  v1::JobStatus job;
  job.add_ranks();
  ASSERT_THAT(CheckTransport(job), SizeIs(1));
  EXPECT_EQ(CheckTransport(job)[0].result, Result::kOk);
}

TEST(TransportChecksTest, RanksThatDifferAreNamed) {
  v1::JobStatus job;
  Add(job, "host");
  Add(job, "peer");
  Add(job, "host");
  EXPECT_EQ(CheckTransport(job)[0].result, Result::kWarning);
  EXPECT_EQ(CheckTransport(job)[0].detail, "ranks differ: host on ranks 0, 2; peer on rank 1");
}

TEST(TransportChecksTest, TheHostIsAFindingForGpuMemoryOnly) {
  v1::JobStatus job;
  v1::TransportInfo& transport = Add(job, "host");
  EXPECT_EQ(CheckTransport(job)[0].result, Result::kOk);
  transport.set_device(0);
  EXPECT_EQ(CheckTransport(job)[0].result, Result::kWarning);
  EXPECT_THAT(CheckTransport(job)[0].detail, HasSubstr("the trainer asked for transport host"));
  transport.set_fallback_reason("transport nccl is not used: rank 3: no NCCL");
  EXPECT_THAT(CheckTransport(job)[0].detail, HasSubstr("rank 3: no NCCL"));
}

TEST(TransportChecksTest, NcclTellsItsLibraryAndSettings) {
  v1::JobStatus job = NcclJob();
  const std::vector<Check> checks = CheckTransport(job);
  ASSERT_THAT(checks, SizeIs(2));
  EXPECT_EQ(checks[0].detail, "nccl on 2 ranks, NVIDIA H200");
  EXPECT_EQ(checks[1].name, "nccl");
  EXPECT_EQ(checks[1].result, Result::kOk);
  EXPECT_THAT(checks[1].detail,
              HasSubstr("NCCL 2.28.9 of /usr/lib/libnccl.so.2: max_ctas=16, "
                        "traffic_class=default, NCCL_BUFFSIZE=4194304 (default), "));
}

TEST(TransportChecksTest, VariablesThatNobodySetAreShownWithNcclsDefault) {
  v1::JobStatus job = NcclJob();
  for (int rank : {0, 1}) {
    Set(Of(job, rank), "NCCL_PXN_DISABLE", "1");
    Set(Of(job, rank), "NCCL_OF_TOMORROW", "x");
  }
  const std::string detail = CheckTransport(job)[1].detail;
  EXPECT_THAT(detail,
              Says("NCCL_RUNTIME_CONNECT=1 (default)", "NCCL_IB_SPLIT_DATA_ON_QPS=0 (default)",
                   "NCCL_NET_GDR_LEVEL=by topology (default)", "NCCL_IB_TC=not set,",
                   "NCCL_PXN_DISABLE=1,", "NCCL_OF_TOMORROW=x,"));
}

using Variables = std::vector<std::pair<std::string, std::string>>;

// "| `NCCL_A`, `NCCL_B` | 1 [src] | when |" is both with "1".
Variables VariablesOfThePage() {
  Variables found;
  std::ifstream page(std::string(EPLB_TEST_DATA) + "/../../docs/nccl-settings.md");
  EXPECT_TRUE(page.is_open());
  for (std::string line; std::getline(page, line);) {
    if (!absl::StartsWith(line, "| `NCCL_")) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, " | ");
    const std::string names = absl::StrReplaceAll(cells[0], {{"| ", ""}, {"`", ""}});
    for (const std::string& name : std::vector<std::string>(absl::StrSplit(names, ", "))) {
      found.emplace_back(name, std::string(absl::StripSuffix(cells[1], " [src]")));
    }
  }
  return found;
}

TEST(TransportChecksTest, TheTableOfVariablesIsThePagesAndRanksTellEachOfThem) {
  Variables table;
  for (const NcclVariable& variable : kNcclVariables) {
    table.emplace_back(variable.name, variable.value_when_unset);
    setenv(variable.name, "of the test", 1);
    EXPECT_THAT(TellNcclEnvironment(), Contains(Pair(variable.name, "of the test")));
    unsetenv(variable.name);
  }
  EXPECT_THAT(VariablesOfThePage(), UnorderedElementsAreArray(table));
}

TEST(TransportChecksTest, AnotherVersionOrSettingOnSomeRanksIsAFinding) {
  v1::JobStatus job = NcclJob();
  Of(job, 1).set_nccl_version("2.27.3");
  Set(Of(job, 1), "NCCL_IB_TC", "106");
  const Check nccl = CheckTransport(job)[1];
  EXPECT_EQ(nccl.result, Result::kWarning);
  EXPECT_THAT(nccl.detail, Says("NCCL 2.27.3 on rank 1; NCCL 2.28.9 on rank 0",
                                "; load the same NCCL on all ranks (EPLB_NCCL_PATH only",
                                "NCCL_IB_TC differs: 106 on rank 1; not set on rank 0"));
  EXPECT_THAT(nccl.detail, HasSubstr("; rank 0 has NCCL 2.28.9 of /usr/lib/libnccl.so.2: max_ctas"))
      << "a difference hides nothing";
  EXPECT_THAT(nccl.detail, HasSubstr("note: a connection has one queue pair"));
}

TEST(TransportChecksTest, WhoSetsTheDefaultDoesNotDiffer) {
  v1::JobStatus job = NcclJob();
  Set(Of(job, 1), "NCCL_CROSS_NIC", "2");
  EXPECT_EQ(CheckTransport(job)[1].result, Result::kOk);
  Set(Of(job, 1), "NCCL_P2P_DISABLE", "1");
  const Check nccl = CheckTransport(job)[1];
  EXPECT_EQ(nccl.result, Result::kWarning);
  EXPECT_THAT(nccl.detail,
              HasSubstr("NCCL_P2P_DISABLE differs: 0 (default) on rank 0; 1 on rank 1"));
  EXPECT_THAT(nccl.detail, HasSubstr("note: NCCL_P2P_DISABLE=1 keeps rows off NVLink"))
      << "also where only another rank than the first has it";
}

TEST(TransportChecksTest, PeerAndNcclTellsOfNcclTooButKeepsItsRowsOnNvlink) {
  v1::JobStatus job = NcclJob();
  for (int rank : {0, 1}) {
    Of(job, rank).set_name("peer+nccl");
    Set(Of(job, rank), "NCCL_P2P_DISABLE", "1");
  }
  const std::vector<Check> checks = CheckTransport(job);
  ASSERT_THAT(checks, SizeIs(2));
  EXPECT_EQ(checks[0].detail, "peer+nccl on 2 ranks, NVIDIA H200");
  EXPECT_THAT(checks[1].detail, Says("NCCL 2.28.9 of /usr/lib/libnccl.so.2: max_ctas=16",
                                     "note: a connection has one queue pair"));
  EXPECT_THAT(checks[1].detail, Not(HasSubstr("keeps rows off NVLink")));
}

TEST(TransportChecksTest, OneQueuePairBetweenNodesIsANote) {
  v1::JobStatus job = NcclJob();
  EXPECT_EQ(CheckTransport(job)[1].result, Result::kOk);
  EXPECT_THAT(CheckTransport(job)[1].detail, HasSubstr("note: a connection has one queue pair"));
  v1::JobStatus one_node = NcclJob();
  one_node.mutable_shape()->set_num_nodes(1);
  EXPECT_THAT(CheckTransport(one_node)[1].detail, Not(HasSubstr("note")));
  for (int rank : {0, 1}) Set(Of(job, rank), "NCCL_IB_QPS_PER_CONNECTION", "4");
  EXPECT_THAT(CheckTransport(job)[1].detail, Not(HasSubstr("note")));
}

TEST(TransportChecksTest, VariablesThatUndoOurSettingsAreNotes) {
  v1::JobStatus job = NcclJob();
  for (int rank : {0, 1}) {
    Of(job, rank).mutable_settings(1)->set_value("3");
    Set(Of(job, rank), "NCCL_IB_TC", "106");
    Set(Of(job, rank), "NCCL_P2P_DISABLE", "1");
    Set(Of(job, rank), "NCCL_NET", "Socket");
    Set(Of(job, rank), "NCCL_MAX_CTAS", "4");
  }
  const Check nccl = CheckTransport(job)[1];
  EXPECT_EQ(nccl.result, Result::kOk);
  EXPECT_THAT(nccl.detail,
              Says("NCCL_IB_TC overrides our traffic class 3",
                   "NCCL_MAX_CTAS=4 overrides max_ctas=16", "keeps rows off NVLink", "over TCP"));
  EXPECT_THAT(nccl.detail, Not(HasSubstr("queue pair")));
}

}  // namespace
}  // namespace eplb::cli
