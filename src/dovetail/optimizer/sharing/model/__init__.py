"""What is planned and what it costs: queries by number, the sub-joins they have in common, prices, and plans in the making."""
