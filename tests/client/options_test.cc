#include "client/options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

ClientOptions Good() {
  ClientOptions options;
  options.num_layers = 2;
  options.num_experts = 8;
  options.num_slots = 8;
  options.num_gpus = 2;
  options.world_size = 4;
  options.rank = 3;
  return options;
}

// Every launcher variable unset, and put back afterwards.
class OptionsTest : public ::testing::Test {
 protected:
  static constexpr const char* kNames[] = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                           "SLURM_JOB_ID",        "SLURM_STEP_ID",
                                           "SLURM_RESTART_COUNT", "EPLB_LAUNCH_ID",
                                           "EPLB_TAKE_OVER",      "EPLB_DISABLE",
                                           "EPLB_TLS_CA",         "EPLB_TLS_CERT",
                                           "EPLB_TLS_KEY"};
  void SetUp() override {
    for (const char* name : kNames) unsetenv(name);
  }
  void TearDown() override { SetUp(); }

  static std::string ErrorOf(const std::function<void(ClientOptions&)>& change) {
    ClientOptions options = Good();
    change(options);
    const absl::Status status = CheckOptions(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }
};

TEST_F(OptionsTest, OneRankMayReportForAll) {
  ClientOptions options = Good();
  options.reduce = "root";
  EXPECT_TRUE(CheckOptions(options).ok());
}

TEST_F(OptionsTest, TlsFilesComeFromOptionsBeforeTheEnvironment) {
  setenv("EPLB_TLS_CA", "/env/ca", 1);
  setenv("EPLB_TLS_KEY", "/env/key", 1);
  const wire::TlsFiles files = TlsFilesOf({.ca = "/own/ca"});
  EXPECT_EQ(files.ca, "/own/ca");
  EXPECT_EQ(files.cert, "");
  EXPECT_EQ(files.key, "/env/key");
  EXPECT_FALSE(TlsFilesOf({}).ca.empty());
  const auto with_daemon = [](auto& o) { o.endpoint = "127.0.0.1:1"; };
  EXPECT_EQ(ErrorOf(with_daemon),
            "tls: TLS: the certificate is not set; TLS needs CA file, certificate and key");
  setenv("EPLB_TLS_CERT", "/env/cert", 1);
  EXPECT_EQ(ErrorOf(with_daemon), "tls: /env/cert: cannot be read: No such file or directory");
  EXPECT_TRUE(CheckOptions(Good()).ok()) << "without a daemon nothing is read";
}

TEST_F(OptionsTest, GoodOptionsGiveTheShape) {
  const absl::StatusOr<Topology> topology = CheckOptions(Good());
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->num_slots(), 8);
}

TEST_F(OptionsTest, EachBadFieldIsNamed) {
  EXPECT_EQ(ErrorOf([](auto& o) { o.job = "a b"; }),
            "job: \"a b\", expected 1..128 characters of [A-Za-z0-9._-]");
  EXPECT_EQ(ErrorOf([](auto& o) { o.run_id = "x/y"; }),
            "run_id: \"x/y\", expected 1..111 characters of [A-Za-z0-9._-]");
  EXPECT_EQ(ErrorOf([](auto& o) { o.world_size = 3; }),
            "world_size: 3, expected a positive multiple of num_gpus 2");
  EXPECT_EQ(ErrorOf([](auto& o) { o.pipeline_parallel_size = 3; }),
            "world_size: 4, expected a positive multiple of pipeline_parallel_size 3 * num_gpus 2");
  EXPECT_EQ(ErrorOf([](auto& o) { o.expert_tensor_parallel = 0; }),
            "expert_tensor_parallel: 0, expected >= 1");
  EXPECT_EQ(ErrorOf([](auto& o) { o.rank = 4; }), "rank: 4, expected 0..3");
  EXPECT_EQ(ErrorOf([](auto& o) { o.first_step = -1; }), "first_step: -1, expected >= 0");
  EXPECT_EQ(ErrorOf([](auto& o) { o.vote_every = 0; }), "vote_every: 0, expected >= 1");
  EXPECT_EQ(ErrorOf([](auto& o) { o.report_every = 0; }), "report_every: 0, expected >= 1");
  EXPECT_EQ(ErrorOf([](auto& o) { o.reduce = "node"; }), "reduce: \"node\", expected rank or root");
  EXPECT_EQ(ErrorOf([](auto& o) { o.split = "exact"; }),
            "split: \"exact\", expected equal or batch");
  EXPECT_EQ(ErrorOf([](auto& o) { o.report_max_steps = 1; }),
            "report_max_steps: 1, expected >= report_every 2");
  EXPECT_EQ(ErrorOf([](auto& o) { o.layers_per_chunk = -1; }),
            "layers_per_chunk: -1, expected >= 0");
  EXPECT_EQ(ErrorOf([](auto& o) { o.transport = "carrier pigeon"; }),
            "transport: \"carrier pigeon\", expected auto, host, peer, nccl, peer+nccl");
  EXPECT_EQ(ErrorOf([](auto& o) { o.vote_deadline = absl::ZeroDuration(); }),
            "vote_deadline: 0, expected above 0, at most 24h");
  EXPECT_EQ(ErrorOf([](auto& o) { o.transfer_deadline = absl::InfiniteDuration(); }),
            "transfer_deadline: inf, expected above 0, at most 24h");
  EXPECT_EQ(ErrorOf([](auto& o) { o.bind_address = ""; }),
            "bind_address: \"\", expected a numeric address");
  EXPECT_EQ(ErrorOf([](auto& o) { o.bind_address = "localhost"; }),
            "bind_address: \"localhost\", expected a numeric address");
  for (const char* endpoint :
       {"localhost", "127.0.0.1:", "::1:29610", ":29610", "a b:1", "h:65536"}) {
    EXPECT_EQ(ErrorOf([endpoint](auto& o) { o.endpoint = endpoint; }),
              absl::StrCat("endpoint is \"", endpoint, "\", expected HOST:PORT or unix:PATH"));
  }
  EXPECT_EQ(ErrorOf([](auto& o) { o.require_daemon = true; }),
            "require_daemon: is set, but endpoint is empty");
  EXPECT_NE(ErrorOf([](auto& o) { o.num_slots = 7; }).find("num_slots"), std::string::npos);
}

TEST_F(OptionsTest, NcclSettingsAreThoseOfTheOptions) {
  const NcclSettings defaults = *WithNcclEnvironment({});
  EXPECT_EQ(TellNcclSettings(defaults), TellNcclSettings(NcclSettings{}));
  const NcclSettings settings = *WithNcclEnvironment({.max_ctas = 1,
                                                      .channels_per_net_peer = 2,
                                                      .traffic_class = 3,
                                                      .piece_bytes = 1 << 20,
                                                      .warm_up_ranks = 5});
  EXPECT_EQ(settings.max_ctas, 1);
  EXPECT_EQ(settings.channels_per_net_peer, 2);
  EXPECT_EQ(settings.traffic_class, 3);
  EXPECT_EQ(settings.piece_bytes, 1 << 20);
  EXPECT_EQ(settings.warm_up_ranks, 5);
  EXPECT_EQ(WithNcclEnvironment({.max_ctas = 0}).status().message(),
            "nccl.max_ctas: 0, expected 1..64");
}

TEST_F(OptionsTest, LaunchIdComesFromOptionThenItsVariableThenTorchThenSlurm) {
  ClientOptions options = Good();
  EXPECT_EQ(LaunchIdOf(options), "");
  setenv("SLURM_JOB_ID", "4711", 1);
  EXPECT_EQ(LaunchIdOf(options), "4711-0");
  setenv("SLURM_RESTART_COUNT", "2", 1);
  EXPECT_EQ(LaunchIdOf(options), "4711-2");
  setenv("SLURM_STEP_ID", "3", 1);  // each srun of an allocation is a run
  EXPECT_EQ(LaunchIdOf(options), "4711.3-2");
  setenv("TORCHELASTIC_RUN_ID", "none", 1);
  EXPECT_EQ(LaunchIdOf(options), "4711.3-2");
  setenv("TORCHELASTIC_RUN_ID", "abc", 1);
  setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
  EXPECT_EQ(LaunchIdOf(options), "abc-1");
  EXPECT_EQ(GivenLaunchId(options), "");  // ranks may have others: one srun for each node
  setenv("EPLB_LAUNCH_ID", "try-7", 1);
  EXPECT_EQ(LaunchIdOf(options), "try-7");
  EXPECT_EQ(GivenLaunchId(options), "try-7");
  options.run_id = "mine";
  EXPECT_EQ(LaunchIdOf(options), "mine");
  EXPECT_EQ(GivenLaunchId(options), "mine");
}

TEST_F(OptionsTest, LaunchersIdThatIsNoRunIsNamedWithItsVariable) {
  setenv("TORCHELASTIC_RUN_ID", "my run/1", 1);
  EXPECT_EQ(
      ErrorOf([](auto&) {}),
      "TORCHELASTIC_RUN_ID: \"my run/1-0\", expected 1..111 characters of [A-Za-z0-9._-], its "
      "step and count of restarts included; or set EPLB_LAUNCH_ID");
  ClientOptions options = Good();
  options.run_id = "mine";
  EXPECT_TRUE(CheckOptions(options).ok());
}

TEST_F(OptionsTest, ARunIsTheLaunchIdAndWhatWasDrawnAndFitsWhereItTravels) {
  EXPECT_EQ(RunOf("4711-0", "0123456789abcdef"), "4711-0.0123456789abcdef");
  EXPECT_EQ(RunOf("", "0123456789abcdef"), "0123456789abcdef");
  ClientOptions options = Good();
  options.run_id = std::string(111, 'x');
  EXPECT_TRUE(CheckOptions(options).ok());
  EXPECT_EQ(RunOf(options.run_id, std::string(kDrawnLength, 'f')).size(), 128U);
  options.run_id += 'x';
  EXPECT_FALSE(CheckOptions(options).ok());
}

TEST_F(OptionsTest, RanksMeetThroughTheDaemonOnlyWhenJobAndRunHaveNames) {
  ClientOptions options = Good();
  options.endpoint = "127.0.0.1:1";
  EXPECT_EQ(
      CheckDaemonAllGather(options).message(),
      "job: \"default\" is shared by all unnamed jobs; name this job so that its ranks do not "
      "join another one");
  options.job = "mine";
  EXPECT_EQ(CheckDaemonAllGather(options).message(),
            "run_id: empty, and neither EPLB_LAUNCH_ID nor torchrun nor SLURM names this "
            "run: two runs of the job could meet at the daemon; set EPLB_LAUNCH_ID, equal "
            "on all ranks and different for each run");
  setenv("EPLB_LAUNCH_ID", "a b", 1);
  EXPECT_EQ(CheckDaemonAllGather(options).message(),
            "EPLB_LAUNCH_ID: \"a b\", expected 1..111 characters of [A-Za-z0-9._-]");
  setenv("EPLB_LAUNCH_ID", "7", 1);
  EXPECT_TRUE(CheckDaemonAllGather(options).ok());
  options.endpoint = "";
  EXPECT_EQ(CheckDaemonAllGather(options).message(), "endpoint: empty, expected that of an eplbd");
  options.job = "";
  EXPECT_FALSE(CheckDaemonAllGather(options).ok());
}

TEST_F(OptionsTest, SeveralEndpointsAreAList) {
  ClientOptions options = Good();
  options.endpoint = "a:1, b:2,/run/c.sock";
  EXPECT_TRUE(CheckOptions(options).ok());
  EXPECT_EQ(EndpointsOf(options), (std::vector<std::string>{"a:1", "b:2", "unix:/run/c.sock"}));
  EXPECT_EQ(ErrorOf([](auto& o) { o.endpoint = "a:1,b"; }),
            "endpoint is \"b\", expected HOST:PORT or unix:PATH");
}

TEST_F(OptionsTest, DaemonsAreFoundWhereTheEndpointSays) {
  ClientOptions options = Good();
  options.endpoint = "a:1, /run/b.sock";
  ASSERT_TRUE(FindDaemons(options).ok());
  EXPECT_EQ(options.endpoint, "a:1,unix:/run/b.sock");
  setenv("EPLB_TEST_DAEMONS", "c:1,d:2", 1);
  options.endpoint = "env:EPLB_TEST_DAEMONS";
  EXPECT_TRUE(CheckOptions(options).ok());
  ASSERT_TRUE(FindDaemons(options).ok());
  EXPECT_EQ(EndpointsOf(options), (std::vector<std::string>{"c:1", "d:2"}));
  setenv("EPLB_TEST_DAEMONS", "nowhere", 1);
  options.endpoint = "env:EPLB_TEST_DAEMONS";
  EXPECT_EQ(FindDaemons(options).message(),
            "env:EPLB_TEST_DAEMONS: endpoint is \"nowhere\", expected HOST:PORT or unix:PATH");
  unsetenv("EPLB_TEST_DAEMONS");
  EXPECT_TRUE(absl::IsNotFound(FindDaemons(options)));
  EXPECT_EQ(ErrorOf([](auto& o) { o.endpoint = "srv:"; }),
            "endpoint is \"srv:\", expected env:NAME, file:PATH or srv:NAME");
}

TEST_F(OptionsTest, TakeOverIsAnOptionOrAVariable) {
  ClientOptions options = Good();
  EXPECT_FALSE(TakesOver(options));
  setenv("EPLB_TAKE_OVER", "0", 1);
  EXPECT_FALSE(TakesOver(options));
  setenv("EPLB_TAKE_OVER", "1", 1);
  EXPECT_TRUE(TakesOver(options));
  unsetenv("EPLB_TAKE_OVER");
  options.take_over = true;
  EXPECT_TRUE(TakesOver(options));
}

TEST_F(OptionsTest, DisableIsAnythingButEmptyAndZero) {
  EXPECT_FALSE(DisabledByEnvironment());
  setenv("EPLB_DISABLE", "0", 1);
  EXPECT_FALSE(DisabledByEnvironment());
  setenv("EPLB_DISABLE", "1", 1);
  EXPECT_TRUE(DisabledByEnvironment());
}

TEST_F(OptionsTest, DrawnTextIsHexadecimalAndNew) {
  const std::string drawn = DrawHex(32);
  EXPECT_EQ(drawn.size(), 64U);
  EXPECT_EQ(drawn.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(drawn, DrawHex(32));
}

}  // namespace
}  // namespace eplb
