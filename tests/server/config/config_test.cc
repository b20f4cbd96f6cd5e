#include "server/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "server/config/config_values.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ConfigTest, ABandwidthThatLooksLikeBitsIsToldWithItsSource) {
  const auto told = [](const std::string& key, const std::string& text) {
    return DoubtfulValues(*LoadConfig({.flags = {{key, text}}}));
  };
  EXPECT_EQ(
      told("cost.inter_gbps", "400"),
      (std::vector<std::string>{"command line: cost.inter_gbps = 400 is read as 400 GB/s; did "
                                "you mean 400Gb/s = 50 GB/s?"}));
  EXPECT_TRUE(told("cost.inter_gbps", "50").empty());
  EXPECT_TRUE(told("cost.inter_gbps", "400 GB/s").empty());
  EXPECT_TRUE(told("cost.intra_gbps", "400").empty());
  EXPECT_EQ(told("cost.intra_gbps", "3600").size(), 1U);
  EXPECT_TRUE(DoubtfulValues(*LoadConfig({})).empty());
}

TEST(ConfigTest, AMissingFileAndAFolderAreRefusedByName) {
  EXPECT_THAT(std::string(LoadConfig({.file = "/nonexistent.toml"}).status().message()),
              HasSubstr("/nonexistent.toml: No such file"));
  EXPECT_THAT(std::string(LoadConfig({.file = "/"}).status().message()),
              StartsWith("/: is a directory"));
}

TEST(ConfigTest, AWrongVariableIsNamed) {
  EXPECT_EQ(
      std::string(LoadConfig({.environment = {{"EPLB_POLICY_MIN_GAIN", "x"}}}).status().message()),
      "EPLB_POLICY_MIN_GAIN: policy.min_gain = x: expected a number in 0..1");
  EXPECT_THAT(
      std::string(LoadConfig({.environment = {{"EPLB_POLICY_NAM", "x"}}}).status().message()),
      HasSubstr("EPLB_POLICY_NAM: policy.nam: unknown key, did you mean policy.name?"));
}

TEST(ConfigTest, VariablesOfOtherProgramsAreNotLookedAt) {
  EXPECT_TRUE(
      LoadConfig({.environment = {{"EPLB_ENDPOINT", "x"}, {"EPLB_DISABLE", "1"}, {"A", "b"}}})
          .ok());
  EXPECT_TRUE(LoadConfig({.environment = {{"EPLB_TLS_SERVER_NAME", "eplb.example.org"}}}).ok());
}

TEST(ConfigTest, VariablesOfKubernetesServicesAreNotReadAndToldOnce) {
  for (const char* name : {"HTTP", "METRICS", "LOG", "STORE", "LISTEN", "POLICY"}) {
    const std::string service = absl::StrCat("EPLB_", name);
    const Variables environment = {{service + "_SERVICE_HOST", "10.0.0.1"},
                                   {service + "_SERVICE_PORT", "29611"},
                                   {service + "_SERVICE_PORT_HTTP", "29611"},
                                   {service + "_PORT", "tcp://10.0.0.1:29611"},
                                   {service + "_PORT_29611_TCP", "tcp://10.0.0.1:29611"},
                                   {service + "_PORT_29611_TCP_ADDR", "10.0.0.1"}};
    EXPECT_TRUE(LoadConfig({.environment = environment}).ok()) << service;
    EXPECT_EQ(UnknownVariables(environment),
              (std::vector<std::string>{absl::StrCat(service, "_SERVICE_HOST, ", service,
                                                     "_PORT and the like are of a Kubernetes "
                                                     "service and not read")}));
  }
  EXPECT_FALSE(LoadConfig({.environment = {{"EPLB_POLICY_PORT", "1"}}}).ok()) << "of no service";
}

TEST(ConfigTest, UnknownVariablesAreToldWithTheNearest) {
  EXPECT_EQ(UnknownVariables({{"EPLB_POLCY_NAME", "x"}, {"EPLB_HOME", "/"}}),
            (std::vector<std::string>{
                "EPLB_POLCY_NAME: eplbd has no such variable, did you mean EPLB_POLICY_NAME?",
                "EPLB_HOME: eplbd has no such variable"}));
  EXPECT_EQ(UnknownVariables({{"EPLB_POLICY_NAME", "x"},
                              {"EPLB_ENDPOINT", "x"},
                              {"EPLB_LIBRARY", "x"},
                              {"EPLB_JOB", "x"},
                              {"EPLB_LAUNCH_ID", "x"},
                              {"EPLB_PROFILES", "x"},
                              {"EPLB_TAKE_OVER", "1"},
                              {"EPLB_DISABLE", "1"},
                              {"EPLB_TLS_SERVER_NAME", "x"},
                              {"PATH", "x"}}),
            std::vector<std::string>());
}

TEST(ConfigTest, StateHomeBeatsHome) {
  EXPECT_EQ(*DefaultStorePath({{"HOME", "/h"}, {"XDG_STATE_HOME", "/s"}}), "/s/eplb/eplbd.db");
  EXPECT_EQ(*DefaultStorePath({{"HOME", "/h"}}), "/h/.local/state/eplb/eplbd.db");
  EXPECT_FALSE(DefaultStorePath({}).ok());
}

TEST(ConfigTest, AServiceManagersFoldersBeatTheUsers) {
  EXPECT_EQ(*DefaultStorePath({{"XDG_STATE_HOME", "/s"}, {"STATE_DIRECTORY", "/var/lib/eplb"}}),
            "/var/lib/eplb/eplbd.db");
  EXPECT_EQ(*DefaultStorePath({{"STATE_DIRECTORY", "/var/lib/a:/var/lib/b"}}),
            "/var/lib/a/eplbd.db");
  EXPECT_EQ(*DefaultStorePath({{"STATE_DIRECTORY", ""}, {"HOME", "/h"}}),
            "/h/.local/state/eplb/eplbd.db");
  EXPECT_EQ(DefaultUnixSockets({{"RUNTIME_DIRECTORY", "/run/x:/run/y"}, {"XDG_RUNTIME_DIR", "/u"}}),
            (std::vector<std::string>{"/run/x/eplbd.sock"}));
  EXPECT_EQ(DefaultUnixSockets({{"XDG_RUNTIME_DIR", "/u"}}),
            (std::vector<std::string>{"/run/eplb/eplbd.sock", "/u/eplb/eplbd.sock"}));
}

TEST(ConfigTest, TheUnixSocketIsAutoNoneOrAPath) {
  const auto socket_of = [](const std::string& text) {
    const absl::StatusOr<DaemonConfig> config = LoadConfig({.flags = {{"listen.unix", text}}});
    return config.ok() ? config->keys.listen().unix() : std::string(config.status().message());
  };
  EXPECT_EQ(LoadConfig({})->keys.listen().unix(), "auto");
  EXPECT_EQ(socket_of("none"), "none");
  EXPECT_EQ(socket_of("/run/a.sock"), "/run/a.sock");
  EXPECT_EQ(socket_of("unix:/run/a.sock"), "/run/a.sock");
  EXPECT_THAT(socket_of("/" + std::string(107, 'x')),
              HasSubstr("expected \"auto\", \"none\" or the path of a socket"));
  EXPECT_EQ(std::string(LoadConfig({.flags = {{"listen.grpc", "unix:/a"}, {"listen.unix", "/b"}}})
                            .status()
                            .message()),
            "listen.unix = /b: listen.grpc is a Unix socket already, unix:/a, expected \"auto\" or "
            "\"none\"");
}

using Flags = std::vector<std::pair<std::string, std::string>>;

TEST(ConfigTest, AnEtcdIsNamedByItsMembers) {
  const absl::StatusOr<DaemonConfig> config =
      LoadConfig({.flags = {{"store.backend", "etcd"},
                            {"store.etcd.endpoints", "http://a:2379, http://b:2379"},
                            {"listen.advertise", "head:29610"}}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(StoreBackendOf(*config), "etcd");
  EXPECT_EQ(AdvertisedAddress(*config), "head:29610");
  EXPECT_EQ(ParseEtcdEndpoints(config->keys.store().etcd().endpoints())->members,
            (std::vector<std::string>{"a:2379", "b:2379"}));
  EXPECT_THAT(DoubtfulValues(*config),
              ::testing::ElementsAre(StartsWith(
                  "store.etcd.endpoints = http://a:2379, http://b:2379: not https, and other")));
  EXPECT_EQ(StoreBackendOf(*LoadConfig({})), "sqlite");
  EXPECT_EQ(StoreBackendOf(*LoadConfig({.flags = {{"store.path", "memory"}}})), "memory");
  EXPECT_EQ(AdvertisedAddress(*LoadConfig({})), "127.0.0.1:29610");
}

TEST(ConfigTest, WhatDoesNotFitAnEtcdIsNamed) {
  const auto error_with = [](Flags flags) {
    flags.insert(flags.begin(), {"store.backend", "etcd"});
    return std::string(LoadConfig({.flags = std::move(flags)}).status().message());
  };
  const std::pair<std::string, std::string> http = {"store.etcd.endpoints", "http://a:2379"};
  const std::pair<std::string, std::string> https = {"store.etcd.endpoints", "https://a:2379"};
  EXPECT_EQ(error_with({}),
            "store.backend = etcd: store.etcd.endpoints is not set, expected the members of etcd");
  EXPECT_EQ(error_with({http, {"store.path", "/a.db"}}),
            "store.path = /a.db: store.backend is etcd, which has no path");
  EXPECT_EQ(error_with({http, {"store.etcd.prefix", "eplb/"}}),
            "store.etcd.prefix = eplb/: expected a / at its begin and none at its end");
  EXPECT_EQ(error_with({http, {"listen.grpc", "0.0.0.0:29610"}}),
            "listen.advertise is not set, and listen.grpc = 0.0.0.0:29610 names no host that ranks "
            "could connect to");
  EXPECT_EQ(error_with({http, {"listen.grpc", "unix:/a"}}),
            "listen.grpc = unix:/a: store.backend is etcd, so ranks of other machines connect; "
            "expected ADDR:PORT");
  EXPECT_EQ(error_with({https}),
            "store.etcd.tls_ca is not set, and store.etcd.endpoints are https");
  EXPECT_EQ(error_with({http, {"store.etcd.tls_key", "/k"}}),
            "store.etcd.tls_key is set, and store.etcd.endpoints are not https");
  EXPECT_THAT(error_with({{"store.etcd.endpoints", "a:1,https://b:2"}}),
              HasSubstr("expected members of etcd"));
  EXPECT_THAT(error_with({{"store.etcd.endpoints", "nowhere"}}),
              HasSubstr("expected members of etcd"));
}

}  // namespace
}  // namespace eplb
