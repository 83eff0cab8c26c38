"""Public checkpoints by our names, `<zoo row>.<training>`, and where on the hub each lies.

DINOv2's rows are not in the zoo: 518 px is the resolution of its positions, and its inputs may have any.
"""

# name: source; each is a plain ViT that `load` reads
PUBLISHED: dict[str, str] = {
    "vit-ti16-224.augreg-in21k-ft-in1k": "hf-hub:timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "vit-s16-224.augreg-in21k-ft-in1k": "hf-hub:timm/vit_small_patch16_224.augreg_in21k_ft_in1k",
    "vit-s16-384.augreg-in21k-ft-in1k": "hf-hub:timm/vit_small_patch16_384.augreg_in21k_ft_in1k",
    "vit-s32-224.augreg-in21k-ft-in1k": "hf-hub:timm/vit_small_patch32_224.augreg_in21k_ft_in1k",
    "vit-b8-224.augreg-in21k-ft-in1k": "hf-hub:timm/vit_base_patch8_224.augreg_in21k_ft_in1k",
    "vit-b16-224.augreg-in21k": "hf-hub:timm/vit_base_patch16_224.augreg_in21k",
    "vit-b16-224.augreg-in21k-ft-in1k": "hf-hub:timm/vit_base_patch16_224.augreg_in21k_ft_in1k",
    "vit-b16-224.orig-in21k": "hf-hub:google/vit-base-patch16-224-in21k",
    "vit-b16-224.orig-in21k-ft-in1k": "hf-hub:google/vit-base-patch16-224",
    "vit-b16-384.orig-in21k-ft-in1k": "hf-hub:google/vit-base-patch16-384",
    "vit-b32-224.augreg-in21k-ft-in1k": "hf-hub:timm/vit_base_patch32_224.augreg_in21k_ft_in1k",
    "vit-b32-384.orig-in21k-ft-in1k": "hf-hub:google/vit-base-patch32-384",
    "vit-l16-224.augreg-in21k-ft-in1k": "hf-hub:timm/vit_large_patch16_224.augreg_in21k_ft_in1k",
    "vit-l16-384.orig-in21k-ft-in1k": "hf-hub:google/vit-large-patch16-384",
    "vit-l32-384.orig-in21k-ft-in1k": "hf-hub:google/vit-large-patch32-384",
    "vit-h14-224.orig-in21k": "hf-hub:google/vit-huge-patch14-224-in21k",
    "vit-s14-518.dinov2": "hf-hub:facebook/dinov2-small",
    "vit-b14-518.dinov2": "hf-hub:facebook/dinov2-base",
    "vit-l14-518.dinov2": "hf-hub:facebook/dinov2-large",
    "vit-b14-518.dinov2-registers": "hf-hub:facebook/dinov2-with-registers-base",
    "vit-b16-224.mae": "hf-hub:timm/vit_base_patch16_224.mae",
    "vit-b16-224.deit": "hf-hub:facebook/deit-base-patch16-224",
    "vit-b16-224.deit-distilled": "hf-hub:facebook/deit-base-distilled-patch16-224",
    "vit-b16-224.deit3-in1k": "hf-hub:timm/deit3_base_patch16_224.fb_in1k",
}
