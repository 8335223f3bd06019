"""Parts of the page of a search for a cheaper variant; `report.variants_page` puts them together."""
