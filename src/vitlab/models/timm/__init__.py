"""Any classification model of timm's in our contract."""
