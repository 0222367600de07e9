"""Whether a sequence leaves no doubt about which experts a router chooses that is none of a softmax alone.

LFM2-MoE, GLM-4.5, DeepSeek-V3 and Nemotron-H choose by sigmoids, ERNIE 4.5 by a softmax plus a bias.

A softmax gives the last expert chosen a small share, so another choice in 16 bits changes little. A sigmoid may give it
as much as the others, and so may a bias: there another choice is another model, and nothing to compare with.
"""
import torch

LEAST_LEAD = 2.0    # an expert chosen leads one that is not by this many times what 16 bits change of their difference
SMALL_SHARE = 0.05  # but for two that both have less than this, of 1


@torch.no_grad()
def _scores(model, ids):
    """Per router: what it chooses its experts by and their shares before any factor, both F32 [len(ids), n_experts], and
    how many groups of experts there are, of which it chooses from so many."""
    names = ("Lfm2MoeTopKRouter", "Glm4MoeTopkRouter", "Glm4vMoeTextTopkRouter", "Ernie4_5_MoeTopKRouter",
             "DeepseekV3TopkRouter", "Glm4MoeLiteTopkRouter", "NemotronHTopkRouter", "MiniMaxM2TopKRouter",
             "Dots1TopkRouter", "ExaoneMoeTopkRouter", "HYV3TopKRouter", "SolarOpenTopkRouter", "AfmoeTokenChoiceRouter",
             "AXK1TopkRouter", "Kolibri1TopKRouter", "Cohere2MoeTopKRouter",
             "MiMoV2FlashTopkRouter", "KimiLinearTopkRouter", "LagunaTopKRouter")
    routers = [module for module in model.modules()
               if type(module).__name__ in names and getattr(module, "expert_selection_fn", "sigmoid") == "sigmoid"
               or (type(module).__name__ == "DeepseekV2TopkRouter" and (module.num_group or 1) > 1)]
    results = []

    def keep(router, inputs, output):
        groups = getattr(router, "num_group", 1) or 1, getattr(router, "topk_group", 1) or 1
        if hasattr(router, "moe_statics"):
            shares = output[0].softmax(-1)
            results.append((router.moe_statics(shares).float(), shares.float(), groups))
            return
        if type(router).__name__ == "DeepseekV2TopkRouter":
            shares = output[0].softmax(-1)
            results.append((shares.float(), shares.float(), groups))
            return
        shares = output[0].sigmoid()
        if type(router).__name__ == "Cohere2MoeTopKRouter":
            results.append((output[0].float(), shares.float(), groups))
            return
        bias = router.e_score_correction_bias if hasattr(router, "e_score_correction_bias") else (
            inputs[1] if getattr(router, "use_expert_bias", True) else 0)
        chosen_by = output[0] if type(router).__name__ == "Kolibri1TopKRouter" else shares
        results.append(((chosen_by + bias).float(), shares.float(), groups))

    hooks = [router.register_forward_hook(keep) for router in routers]
    if routers:
        model(input_ids=torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return results


def _differences(scores):
    """[n_tokens, n_experts, n_experts]: how far each expert leads each other one."""
    return scores[:, :, None] - scores[:, None, :]


def _is_doubtful(reference, scores, is_chosen, least_lead, matters=True):
    """Whether one chosen does not lead one that is not by as much as it should."""
    lead = _differences(reference)
    matters = matters & is_chosen[:, :, None] & ~is_chosen[:, None, :]
    return (matters & (lead < least_lead * (_differences(scores) - lead).abs())).any()


def _chosen(scores, n):
    return torch.zeros_like(scores, dtype=torch.bool).scatter(1, scores.topk(n).indices, True)


def _group_scores(scores, shares, n_groups):
    """A group is as good as its best expert, or where shares are sigmoids as its two best."""
    is_softmax = (shares.sum(-1) < 1.0001).all()
    return scores.unflatten(1, (n_groups, -1)).topk(1 if is_softmax else 2, dim=-1).values.sum(-1)


def are_clear(model, rounded_models, ids, least_lead=LEAST_LEAD):
    """Whether they are at every position. With a lead of 1 all types choose the same. True without such routers."""
    references = _scores(model, ids)
    top_k = getattr(model.config.get_text_config(), "num_experts_per_tok", None)
    for rounded_model in rounded_models if references else []:
        for (reference, shares, (n_groups, top_groups)), (scores, other, _) in zip(references,
                                                                                  _scores(rounded_model, ids)):
            is_open = torch.ones_like(reference, dtype=torch.bool)
            if n_groups > 1:
                of_groups = _group_scores(reference, shares, n_groups)
                best = _chosen(of_groups, top_groups)
                if _is_doubtful(of_groups, _group_scores(scores, other, n_groups), best, least_lead):
                    return False
                is_open = best.repeat_interleave(reference.shape[1] // n_groups, dim=1)
            is_small = shares < SMALL_SHARE
            matters = is_open[:, None, :] & ~(is_small[:, :, None] & is_small[:, None, :])
            is_chosen = _chosen(reference.masked_fill(~is_open, float("-inf")), top_k)
            if _is_doubtful(reference, scores, is_chosen, least_lead, matters):
                return False
    return True
