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
    """Per router: what it chooses its experts by and their shares before any factor, both F32 [len(ids), n_experts]."""
    names = ("Lfm2MoeTopKRouter", "Glm4MoeTopkRouter", "Glm4vMoeTextTopkRouter", "Ernie4_5_MoeTopKRouter", "DeepseekV3TopkRouter",
             "Glm4MoeLiteTopkRouter", "NemotronHTopkRouter", "MiniMaxM2TopKRouter", "Dots1TopkRouter", "ExaoneMoeTopkRouter",
             "HYV3TopKRouter")
    routers = [module for module in model.modules() if type(module).__name__ in names]
    results = []

    def keep(router, inputs, output):
        if hasattr(router, "moe_statics"):
            shares = output[0].softmax(-1)
            results.append((router.moe_statics(shares).float(), shares.float()))
            return
        shares = output[0].sigmoid()
        bias = router.e_score_correction_bias if hasattr(router, "e_score_correction_bias") else (
            inputs[1] if getattr(router, "use_expert_bias", True) else 0)
        results.append(((shares + bias).float(), shares.float()))

    hooks = [router.register_forward_hook(keep) for router in routers]
    if routers:
        model(input_ids=torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return results


def _differences(scores):
    """[n_tokens, n_experts, n_experts]: how far each expert leads each other one."""
    return scores[:, :, None] - scores[:, None, :]


def are_clear(model, rounded_models, ids, least_lead=LEAST_LEAD):
    """Whether they are at every position. With a lead of 1 all types choose the same. True without such routers."""
    references = _scores(model, ids)
    for rounded_model in rounded_models if references else []:
        for (reference, shares), (scores, _) in zip(references, _scores(rounded_model, ids)):
            best = reference.topk(model.config.get_text_config().num_experts_per_tok).indices
            is_chosen = torch.zeros_like(reference, dtype=torch.bool).scatter(1, best, True)
            is_small = shares < SMALL_SHARE
            matters = (is_chosen[:, :, None] & ~is_chosen[:, None, :]) & ~(is_small[:, :, None] & is_small[:, None, :])
            lead = _differences(reference)
            if (matters & (lead < least_lead * (_differences(scores) - lead).abs())).any():
                return False
    return True
