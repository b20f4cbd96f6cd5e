#include "server/rpc/identity.h"

#include <gtest/gtest.h>

namespace eplb {
namespace {

const std::vector<IdentityRule> kRules = {
    {"spiffe://x/*", AccessRole::kViewer, {"*"}},
    {"spiffe://x/train/*", AccessRole::kMember, {"train", "tune-*"}},
    {"spiffe://x/train/boss", AccessRole::kOperator, {"train"}},
};

absl::StatusCode CodeOf(const PeerIdentity& peer, Verb verb, std::string_view job) {
  return Allowed(peer, verb, job).code();
}
constexpr absl::StatusCode kOk = absl::StatusCode::kOk;
constexpr absl::StatusCode kDenied = absl::StatusCode::kPermissionDenied;

TEST(IdentityTest, APatternIsExactOrAPrefix) {
  EXPECT_TRUE(FitsPattern("train", "train"));
  EXPECT_FALSE(FitsPattern("train", "train2"));
  EXPECT_TRUE(FitsPattern("tune-*", "tune-7"));
  EXPECT_TRUE(FitsPattern("*", ""));
  EXPECT_FALSE(FitsPattern("tune-*", "tune"));
  EXPECT_FALSE(FitsPattern("", "a"));
}

TEST(IdentityTest, TheMostSpecificRuleCounts) {
  EXPECT_EQ(CertifiedPeer("spiffe://x/a", kRules).role, AccessRole::kViewer);
  EXPECT_EQ(CertifiedPeer("spiffe://x/train/rank7", kRules).role, AccessRole::kMember);
  EXPECT_EQ(CertifiedPeer("spiffe://x/train/boss", kRules).role, AccessRole::kOperator);
  EXPECT_FALSE(CertifiedPeer("spiffe://y/a", kRules).role.has_value());
  const std::vector<IdentityRule> reversed(kRules.rbegin(), kRules.rend());
  EXPECT_EQ(CertifiedPeer("spiffe://x/train/rank7", reversed).role, AccessRole::kMember);
  EXPECT_EQ(CertifiedPeer("spiffe://x/train/boss", reversed).role, AccessRole::kOperator);
}

TEST(IdentityTest, AUriHidesDnsNamesAndOfThoseTheFirstThatARuleFitsCounts) {
  const std::vector<IdentityRule> rules = {{"ops.x", AccessRole::kOperator, {"*"}},
                                           {"viewer.x", AccessRole::kViewer, {"*"}},
                                           {"spiffe://x/*", AccessRole::kMember, {"*"}}};
  const PeerIdentity second =
      CertifiedPeer(CertifiedNames{.dns_names = {"node7.x", "ops.x", "viewer.x"}}, rules);
  EXPECT_EQ(second.name, "ops.x");
  EXPECT_EQ(second.role, AccessRole::kOperator);
  const PeerIdentity none = CertifiedPeer(CertifiedNames{.dns_names = {"a.x", "b.x"}}, rules);
  EXPECT_EQ(none.name, "a.x");
  EXPECT_FALSE(none.role.has_value());
  const CertifiedNames both{.uris = {"spiffe://y/a"}, .dns_names = {"ops.x"}};
  EXPECT_EQ(Allowed(CertifiedPeer(both, rules), Verb::kQuery, "job").message(),
            "spiffe://y/a: no rule of tls.identity fits");
}

TEST(IdentityTest, ACertificateOfNobodySaysWhy) {
  const CertifiedNames two{.uris = {"spiffe://x/a", "spiffe://x/b"}, .dns_names = {"ops.x"}};
  const absl::Status many = Allowed(CertifiedPeer(two, kRules), Verb::kQuery, "job");
  EXPECT_EQ(many.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(many.message(), "the peer's certificate has 2 URIs, expected one");
  EXPECT_EQ(Allowed(CertifiedPeer(CertifiedNames{}, kRules), Verb::kQuery, "job").message(),
            "the peer's certificate has neither a URI nor a DNS name");
}

TEST(IdentityTest, EachRoleMayDoItsOwnVerbsForItsOwnJobs) {
  const PeerIdentity member = CertifiedPeer("spiffe://x/train/rank7", kRules);
  const PeerIdentity viewer = CertifiedPeer("spiffe://x/a", kRules);
  const PeerIdentity boss = CertifiedPeer("spiffe://x/train/boss", kRules);
  for (const Verb verb : {Verb::kSession, Verb::kAllGather, Verb::kPlan}) {
    EXPECT_EQ(CodeOf(member, verb, "train"), kOk);
    EXPECT_EQ(CodeOf(member, verb, "tune-3"), kOk);
    EXPECT_EQ(CodeOf(member, verb, "other"), kDenied);
    EXPECT_EQ(CodeOf(member, verb, ""), kDenied);
    EXPECT_EQ(CodeOf(viewer, verb, "train"), kDenied);
    EXPECT_EQ(CodeOf(boss, verb, "train"), kDenied);
  }
  EXPECT_EQ(CodeOf(member, Verb::kQuery, "train"), kOk);
  EXPECT_EQ(CodeOf(member, Verb::kQuery, "other"), kDenied);
  EXPECT_EQ(CodeOf(viewer, Verb::kQuery, "other"), kOk);
  EXPECT_EQ(CodeOf(boss, Verb::kQuery, "train"), kOk);
  EXPECT_EQ(CodeOf(boss, Verb::kAdmin, "train"), kOk);
  EXPECT_EQ(CodeOf(boss, Verb::kAdmin, "other"), kDenied);
  EXPECT_EQ(CodeOf(boss, Verb::kAdmin, ""), kDenied);
  EXPECT_EQ(CodeOf(member, Verb::kAdmin, "train"), kDenied);
  EXPECT_EQ(CodeOf(viewer, Verb::kAdmin, "train"), kDenied);
}

TEST(IdentityTest, WithoutTlsTheMachineItselfMayDoEverythingAndOthersAreMembers) {
  for (const Verb verb :
       {Verb::kSession, Verb::kAllGather, Verb::kPlan, Verb::kQuery, Verb::kAdmin}) {
    EXPECT_EQ(CodeOf(LocalPeer(), verb, "any"), kOk);
  }
  EXPECT_EQ(CodeOf(PlaintextPeer(), Verb::kSession, "any"), kOk);
  EXPECT_EQ(CodeOf(PlaintextPeer(), Verb::kAdmin, "any"), kDenied);
}

TEST(IdentityTest, OnlyWhatNobodyProvesIsClaimed) {
  EXPECT_EQ(ActorText(LocalPeer(), ""), "local");
  EXPECT_EQ(ActorText(LocalPeer(), "alice@host"), "alice@host (claimed)");
  EXPECT_EQ(ActorText({.name = "uid 1000 (bob)", .user = 1000}, "root@host"), "uid 1000 (bob)");
  EXPECT_EQ(ActorText(CertifiedPeer("spiffe://bob", {}), "root@host"), "spiffe://bob");
  EXPECT_EQ(ActorText(CertifiedPeer("spiffe://\xf6tto", {}), ""), "spiffe://?tto");
  EXPECT_EQ(ActorText(LocalPeer(), "a\nb\x1b[31m"), "a b?[31m (claimed)");
  EXPECT_LE(ActorText(LocalPeer(), std::string(100000, '\n')).size(), 600u);
}

TEST(IdentityTest, RefusalsAreOneLineThatSaysWhoAndWhy) {
  EXPECT_EQ(CodeOf({}, Verb::kQuery, "job"), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Allowed(CertifiedPeer("a\nb", kRules), Verb::kQuery, "job").message(),
            "a b: no rule of tls.identity fits");
  EXPECT_EQ(Allowed(CertifiedPeer("spiffe://x/a", kRules), Verb::kAdmin, "job").message(),
            "spiffe://x/a: role viewer may not change what runs");
  EXPECT_EQ(
      Allowed(CertifiedPeer("spiffe://x/train/boss", kRules), Verb::kAdmin, "o\nther").message(),
      "spiffe://x/train/boss: not allowed for job \"o ther\" (tls.identity)");
}

}  // namespace
}  // namespace eplb
